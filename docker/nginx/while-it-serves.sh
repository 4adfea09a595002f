#!/bin/sh
# Of compose.yaml: nginx for as long as the aggregator serves its run. When the run has ended, its socket is gone.
served() { [ -S /socket/rankdad ] || { sleep 2; [ -S /socket/rankdad ]; }; } # one that was killed makes it anew at once

trap 'kill -QUIT "$nginx"' TERM INT QUIT
nginx -e stderr -g "daemon off;" &
nginx=$!
until [ -S /socket/rankdad ]; do sleep 0.2; done
while served && kill -0 "$nginx" 2>/dev/null; do sleep 1; done
kill -QUIT "$nginx" 2>/dev/null # once what it is at has ended
wait "$nginx"
