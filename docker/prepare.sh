#!/bin/sh
# Of compose.yaml and compose-regions.yaml: makes each party's kit, deals out the data, and puts the results of a run that has ended
# aside. Every aggregator has a consortium of its own, /consortia/NAME.json, and every party a folder in /kits.
# It starts as root, with little of root's power: folders that Docker makes belong to root, and are handed to OWNER here. rankdad
# itself runs as OWNER.
set -eu
as_owner="setpriv --reuid ${OWNER%%:*} --regid ${OWNER##*:} --clear-groups --inh-caps=-all"
parties=$(ls /kits)

if [ ! -e /kits/aggregator/complete ]; then
    for consortium in /consortia/*.json; do
        name=$(basename "$consortium" .json)
        made="/tmp/kits-$name"
        $as_owner rankdad provision "$consortium" --output "$made"
        cp -R "$made/aggregator/." "/kits/$name/"
        for kit in "$made"/sites/*; do
            party=$(basename "$kit")
            place="/kits/$party"
            if [ -e "/consortia/$party.json" ]; then place="$place/above"; fi # a region's, for the aggregator above it
            mkdir -p "$place"
            cp -R "$kit/." "$place/"
        done
    done
    touch /kits/aggregator/complete
else
    echo "the kits of an earlier start are used; down --volumes removes them"
fi

# The image has scikit-learn's digits as a file, and no scikit-learn.
if tr -d '[:space:]' </run.json | grep -q '"source":{"name":"digits"}'; then
    set -- --set 'simulation.source={"name": "npz", "path": "/opt/rankdad/digits.npz"}'
fi
$as_owner rankdad split /run.json --output /tmp/split "$@"
for site in $parties; do
    if [ -e "/consortia/$site.json" ]; then continue; fi # an aggregator
    [ -d "/tmp/split/$site" ] || { echo "error: the run has no site $site, expected all of" $parties >&2; exit 2; }
    cp /tmp/split/"$site"/data/* "/kits/$site/data/"
    cp /tmp/split/"$site"/policy.json "/kits/$site/"
    mkdir -p "/kits/$site/privacy" "/results/privacy/$site" # what has left is kept there over runs
    if [ -d "/tmp/split/$site/privacy" ]; then cp -Rn "/tmp/split/$site/privacy/." "/results/privacy/$site/"; fi
    chown -R "$OWNER" "/results/privacy/$site"
done

if grep -qsE '"status": "(completed|failed|refused)"' /results/aggregator/summary.json; then
    aside="earlier/$(date -u +%Y%m%d-%H%M%S)"
    for party in $parties; do
        mkdir -p "/results/$aside/$party"
        find "/results/$party" -mindepth 1 -maxdepth 1 -exec mv -t "/results/$aside/$party" {} +
    done
    chown -R "$OWNER" /results/earlier
    echo "the results of the run that has ended are now in results/$aside; a new run begins"
elif [ -e /results/aggregator/summary.json ]; then
    echo "results holds an interrupted run; it is resumed"
fi

for party in $parties; do
    mkdir -p "/results/$party"
    chown -R "$OWNER" "/kits/$party" "/results/$party"
done

if [ -d /socket ]; then # of the aggregator and nginx
    chown "$OWNER" /socket
    chmod 700 /socket
fi

whose=$(stat -c %u /results)
if [ "$whose" != 0 ] && [ "$whose" != "${OWNER%%:*}" ]; then
    echo "note: results will belong to user ${OWNER%%:*}, not to yours; RANKDAD_UID=$whose changes that"
fi
