#!/bin/sh
# Of compose.yaml: makes the kits of the service, the owner and the hospitals, and each hospital's data, once.
# Folders that Docker makes belong to root, and are handed to OWNER here; nothing else runs as root.
set -eu
as_owner="setpriv --reuid ${OWNER%%:*} --regid ${OWNER##*:} --clear-groups --inh-caps=-all"

if [ ! -e /kits/service/consortium.json ]; then
    $as_owner rankdad provision /consortium.json --output /tmp/kits
    (cd /tmp && $as_owner python /data.py)
    cp -R /tmp/kits/aggregator/. /kits/service/
    cp -R /tmp/kits/owners/anna/. /kits/anna/
    for hospital in hospital-a hospital-b hospital-c; do
        cp -R /tmp/kits/sites/$hospital/. /kits/$hospital/
        cp /tmp/data/$hospital/patients.csv /kits/$hospital/data/
    done
    sed -i 's/"policy"/"approval": "manual",\n  "policy"/' /kits/hospital-c/SITE.json # somebody there says yes to each run
fi
chown -R "$OWNER" /kits/* /socket /service /results # /kits itself cannot be written to
chmod 700 /socket
