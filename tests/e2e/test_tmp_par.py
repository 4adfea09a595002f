import pytest, json, sys
from pathlib import Path
from tests.e2e.house import house, furthest
from tests.e2e.test_ranks import SGD, ADAM
CASES = {"rd": {"name": "rank-dad", "rank": 2}, "dad": {"name": "dad"}, "dsgd": {"name": "dsgd"}, "psgd": {"name": "powersgd", "rank": 2}}
MESH = {"t2": {"tensor": 2}, "d2t2": {"data": 2, "tensor": 2}, "s2t2": {"shard": 2, "tensor": 2}, "d2s2": {"data": 2, "shard": 2}, "fsdp": "fsdp"}
@pytest.mark.parametrize("mesh", MESH)
@pytest.mark.parametrize("case", CASES)
def test_it(tmp_path, case, mesh):
    training = ADAM | {"clip": 0.2}
    ended = []
    for number in range(2):
        with house(tmp_path / str(number), samples=26, sharing=3, method=CASES[case], training=training) as found:
            size = 1
            if number:
                found.share(MESH[mesh])
                size = 2 if mesh in ("t2", "fsdp") else 4
            ended.append(found.done(size))
    print("FURTHEST", case, mesh, furthest(*ended))
    assert furthest(*ended) < 1e-5
