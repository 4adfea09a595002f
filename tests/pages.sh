# What the pages' commands need, and pages do not show: `<!-- hidden NAME -->` calls a function of this file.

wait_for() { # FILE TEXT: until the file has the text
    for _ in $(seq 1500); do grep -qF -- "$2" "$1" && return; sleep 0.2; done
    echo "never said: $2"; tail -5 "$1"; return 1
}

tables() { python -m tests.pages_data heart; }

notes() { python -m tests.pages_data notes; }

table_for_a_policy() { tables; mv hospitals/aachen DATA; }

three_hospitals() { python -m tests.pages_data diabetes; }

data_into_kits() { for site in kits/sites/*; do cp "data/$(basename "$site")"/* "$site/data"; done; }

simulated_source() {
    python -c 'import json; run = json.load(open("RUN.json")); json.dump({"run": run, "simulation": {
        "source": {"name": "folders", "path": "data"}, "partition": {"name": "folder"}}}, open("RUN.json", "w"))'
}

new_patients() { ln -s runs/trial DIR; sed '1s/progression/ward/' data/hospital-a/patients.csv >new.csv; }

served() { # COMMAND LOG: start an aggregator or a service in kits/aggregator
    (cd kits/aggregator && exec rankdad $1 --port "$PORT" --tls-cert server.pem --tls-key server.key \
        --client-ca ca.pem --tokens tokens.json >"$2" 2>&1) &
    server=$!
    wait_for "kits/aggregator/$2" 'listening on'
}

sites() { # OPTIONS LOG: start all sites
    started=
    for site in kits/sites/*; do (cd "$site" && exec rankdad site SITE.json $1 >"$2" 2>&1) & started="$started $!"; done
}

kit() { # in kits/sites/hospital-a, beside an aggregator that waits
    three_hospitals
    echo '{"name": "study", "aggregator": "https://127.0.0.1:'"$PORT"'", "owners": ["anna"],
           "sites": ["hospital-a", "hospital-b", "hospital-c"]}' >consortium.json
    rankdad provision consortium.json --output kits
    data_into_kits
    cp RUN.json kits/aggregator
    served 'aggregator RUN.json --output run' aggregator.log
    cd kits/sites/hospital-a
    cat SITE.json
}

approved_run() { # the run of `kit`, then another one, of a service, that hospital-a approves
    cd ../../..
    sites '' site.log
    wait $started $server
    cat kits/sites/hospital-a/site.log
    served 'serve consortium.json --output DIR' serve.log
    sed -i '1a "approval": "manual",' kits/sites/hospital-a/SITE.json
    sites --stay stay.log
    rankdad submit RUN.json --to kits/owners/anna/OWNER.json
    wait_for kits/sites/hospital-a/stay.log 'rankdad approve'
    cat kits/sites/hospital-a/stay.log
    cd kits/sites/hospital-a
    echo y | rankdad approve diabetes-1 SITE.json
    rankdad logs diabetes-1 --follow --to ../../owners/anna/OWNER.json
    kill $started
    wait $started || true
    export RANKDAD_PASSPHRASE='correct horse battery staple'
}

sites_take_part() { cd ../..; sites '' site.log; wait $started; cd kits/aggregator; wait %1 || true; ln -sfn run DIR; }

agents() { # a question that hospital-b refuses and hospital-c does not hear; then all agents, in the owner's kit
    cd ../..
    cp RUN.json kits/owners/anna
    echo '{"columns": ["age", "sex", "bp", "s?", "progression"]}' >kits/sites/hospital-b/policy.json
    mkdir kits/later
    mv kits/sites/hospital-c kits/later
    sites --stay stay.log
    for site in kits/sites/*; do wait_for "$site/stay.log" 'waiting for runs of'; done
    rankdad ask RUN.json --to kits/owners/anna/OWNER.json --wait 30 || test $? = 3
    cp kits/sites/hospital-a/policy.json kits/sites/hospital-b/policy.json
    mv kits/later/hospital-c kits/sites
    (cd kits/sites/hospital-c && exec rankdad site SITE.json --stay >stay.log 2>&1) &
    wait_for kits/sites/hospital-c/stay.log 'waiting for runs of'
    cd kits/owners/anna
}

long_run() { # another run of this owner's, for those who cancel it
    sed 's/"epochs": 10/"epochs": 2000/' RUN.json >long.json
    rankdad submit long.json --to OWNER.json
}
