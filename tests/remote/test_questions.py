"""Questions of owners: who may ask, how often, and who reads the answers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from rankdad.common.errors import ProtocolError
from rankdad.common.protocol.service import Refusal, Stance
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.remote.service.questions import LASTS, MOST_OF_OWNER, Questions
from rankdad.remote.service.queue import FILE, Queue
from rankdad.remote.service.service import Service
from tests.conftest import SITES, run_document
from tests.remote.test_service import as_, asking, with_service

ID, OTHER = "0123456789abcdef", "1" * 16
REFUSED = Stance(refusals=(Refusal(line="min_rows", field="training.batch_size", code="policy-refuses", needed="4"),))


@pytest.mark.slow
def test_sites_answer_once_and_only_the_owner_who_asks_reads_it(tmp_path: Path) -> None:
    async def ask(service: Service) -> None:
        body = {"id": ID, **OUR_VERSION, "spec": run_document(federation={"sites": SITES[:2]})}
        async with asking(service) as client:
            for who in ("alpha", "vera", "nobody"):
                assert (await client.post("/asks", json=body, headers=as_(who))).status_code in (401, 403)
            before = service.offers("alpha").digest
            for _ in range(2):  # sent again, it is the same
                asked = await client.post("/asks", json=body, headers=as_("anna"))
                assert asked.json()["stances"] == {}
            offers = service.offers("alpha")
            assert (offers.questions, offers.digest == before, offers.runs) == ((ID,), False, ())
            own = f"/agents/alpha/asks/{ID}"
            assert (await client.get(own, headers=as_("alpha"))).json()["owner"] == "anna"
            for stance in (REFUSED, Stance()):
                assert (
                    await client.post(own, content=stance.model_dump_json(), headers=as_("alpha"))
                ).status_code == 204
            assert service.offers("alpha").questions == ()
            answers = await client.get(f"/asks/{ID}", headers=as_("anna"))
            assert answers.json()["stances"] == {"alpha": json.loads(REFUSED.model_dump_json())}
            refused = [
                ("GET", f"/asks/{ID}", "alpha", 403),
                ("GET", f"/asks/{ID}", "vera", 403),
                ("GET", f"/agents/beta/asks/{ID}", "alpha", 403),
                ("GET", f"/agents/gamma/asks/{ID}", "gamma", 404),  # is not asked
                ("POST", f"/agents/gamma/asks/{ID}", "gamma", 404),
                ("GET", f"/asks/{OTHER}", "anna", 404),
                ("GET", f"/agents/alpha/asks/{OTHER}", "alpha", 404),
            ]
            for verb, path, who, status in refused:
                answer = await client.request(verb, path, headers=as_(who), content="{}")
                assert (answer.status_code, "policy-refuses" in answer.text) == (status, False), path
            with pytest.raises(ProtocolError) as others:
                service.questions.asked(ID, "otto")
            assert others.value.status == 404
        assert service.queue.newest(10) == [], "nothing is submitted"

    with_service(ask, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "who", "body", "code"),
    [
        ("/asks", "anna", "[1]", "body-malformed"),
        ("/asks", "anna", json.dumps({"id": ID, "version": "9.0", "wire": 1, "spec": {}}), "version-differs"),
        ("/asks", "anna", json.dumps({"id": "../..", **OUR_VERSION, "spec": {}}), "body-malformed"),
        (
            "/asks",
            "anna",
            json.dumps({"id": ID, **OUR_VERSION, "spec": run_document(federation={"sites": ["stranger"]})}),
            "site-unknown",
        ),
        ("/agents/alpha/asks/" + OTHER, "alpha", '{"refusals": [{"code": "Not a code"}]}', "body-malformed"),
        ("/agents/alpha/asks/" + OTHER, "alpha", '{"refusals": [{"code": "a", "rows": 17}]}', "body-malformed"),
        ("/agents/alpha/asks/" + OTHER, "alpha", " " * (1 << 15), "body-too-large"),
    ],
)
def test_a_body_that_is_no_question_or_answer_is_refused(
    tmp_path: Path, path: str, who: str, body: str, code: str
) -> None:
    async def ask(service: Service) -> None:
        async with asking(service) as client:
            answer = await client.post(path, content=body, headers=as_(who))
            assert answer.json()["code"] == code

    with_service(ask, tmp_path)


def test_an_owner_asks_so_often_in_an_hour_and_what_has_expired_is_gone(tmp_path: Path) -> None:
    now = [1000.0]
    with contextlib.closing(Queue(tmp_path / FILE, lambda: now[0])) as queue:
        questions = Questions(queue)
        for number in range(MOST_OF_OWNER):
            questions.ask(f"{number:016x}", "draft", "anna", SITES, {})
        questions.answer(f"{0:016x}", "alpha", REFUSED)
        questions.ask("f" * 16, "draft", "otto", SITES, {})
        with pytest.raises(ProtocolError) as refused:
            questions.ask(ID, "draft", "anna", SITES, {})
        assert refused.value.code == "too-many-questions"
        with pytest.raises(ProtocolError) as taken:
            questions.ask("f" * 16, "draft", "anna", SITES, {})
        assert taken.value.code == "id-taken"
        now[0] += LASTS
        assert questions.of("alpha") == []
        assert questions.ask(f"{0:016x}", "draft", "anna", SITES, {}).stances == {}
    with contextlib.closing(Queue(tmp_path / FILE, lambda: now[0])) as queue:
        assert Questions(queue).of("alpha") == [f"{0:016x}"], "the service was started again"
