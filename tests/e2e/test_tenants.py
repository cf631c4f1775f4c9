"""Tenants: an administrator limits one, and Slurm holds its work to the limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = pytest.mark.lab

TENANT = "chemistry"


class SystemAdmin(Person):
    """Known to the identity provider alone: sits at dave's terminal with a token of her own."""

    def logged_in(self, *scopes: str) -> Person:
        token = self.lab.oidc.token("olga", " ".join(("openid", *scopes)))
        self._token = str(token["access_token"])
        return self


@pytest.fixture
def olga(lab: Lab) -> Person:
    return SystemAdmin(lab, "dave").logged_in("system:admin")


@pytest.fixture(autouse=True)
def no_tenant(quiet_lab: Lab) -> Iterator[None]:
    yield
    quiet_lab.jobs.cancel_all()
    for what in (["user", "name=dave", f"account={TENANT}"], ["account", f"name={TENANT}"]):
        eventually(
            lambda what=what: quiet_lab.ctl(["sacctmgr", "-i", "delete", *what], check=False),
            lambda done: "running" not in done.stdout + done.stderr,
        )


@pytest.mark.story
@pytest.mark.spec("OPS-5")
def test_work_above_a_tenants_limit_waits_until_the_limit_is_raised(
    quiet_lab: Lab, olga: Person, alice: Person, carol: Person
) -> None:
    made = olga.tries("admin", "tenant", "create", TENANT, "--max-nodes", "1")
    assert made.code == 0, made
    assert "0/1 in use" in made.out
    quiet_lab.ctl(["sacctmgr", "-i", "add", "user", "dave", f"account={TENANT}"])
    job = quiet_lab.sbatch("dave", "--nodes=2", f"--account={TENANT}", wrap="sleep 300")
    assert eventually(lambda: reason(olga, job), lambda found: found == "AssocGrpNodeLimit")
    waiting = olga.asks("admin", "tenant", "show", TENANT)
    assert waiting["tenant"]["use"]["pending"] == 1
    assert "dave" in waiting["projects"][0]["users"]

    raised = olga.tries("admin", "tenant", "update", TENANT, "--max-nodes", "2")
    assert raised.code == 0, raised
    assert "--max-nodes 1" in raised.err, "how to take it back"
    quiet_lab.wait_job_state(job, "RUNNING")
    eventually(
        lambda: olga.asks("admin", "tenant", "show", TENANT)["tenant"]["use"]["nodes"],
        lambda nodes: nodes == 2,
    )

    listed = {each["name"] for each in olga.asks("admin", "tenant", "list")["tenants"]}
    assert {TENANT, "physics", "biology"} <= listed
    own = [each["name"] for each in carol.asks("admin", "tenant", "list")["tenants"]]
    assert own == ["biology"], "a tenant admin sees her own"
    for other in (TENANT, "nothing"):
        assert carol.tries("admin", "tenant", "show", other).code == 102
    assert carol.tries("admin", "tenant", "update", "biology", "--max-nodes", "9").code == 77
    assert alice.tries("admin", "tenant", "list").code == 77


def reason(person: Person, job: int) -> str:
    found = person.card(job)
    return str((found["allocation"]["reason"] or {}).get("code", ""))


@pytest.mark.spec("ALLOC-6")
def test_vclusters_are_listed_with_their_nodes(quiet_lab: Lab, alice: Person) -> None:
    quiet_lab.jobs.cancel_all()
    found = {each["name"]: each for each in alice.asks("vclusters")["vclusters"]}
    assert found["batch"]["kind"] == "hpc"
    assert found["batch"]["partition"] == "batch"
    assert found["batch"]["nodes"] == sum(each["nodes"] for each in found["batch"]["states"])
    assert "ready" in alice.tries("vclusters").out
