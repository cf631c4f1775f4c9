"""Who verified claims make the caller: role, user and tenant, and where each came from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, ClaimNames, Role, actor_from, scopes_of

# Written from the specification, in its order: what a scope gives, what a claim gives.
BY_SCOPE = [
    ("admin", "SystemAdmin"),
    ("system:admin", "SystemAdmin"),
    ("tenant:admin", "TenantAdmin"),
    ("operator", "Operator"),
    ("sensitive:claim", "ClaimingUser"),
    ("readonly", "ReadOnly"),
    ("compliance:review", "ComplianceReviewer"),
]
BY_CLAIM = [
    ("pact-platform-admin", "SystemAdmin"),
    ("system-admin", "SystemAdmin"),
    ("tenant-admin", "TenantAdmin"),
    ("operator", "Operator"),
]
ORDER = [
    "SystemAdmin",
    "TenantAdmin",
    "Operator",
    "ClaimingUser",
    "ReadOnly",
    "ComplianceReviewer",
    "User",
]


def actor(names: ClaimNames | None = None, **claims: Any) -> Actor:
    return actor_from({"sub": "s-1", **claims}, names or ClaimNames())


@pytest.mark.spec("AUTH-4")
@pytest.mark.parametrize(("scope", "role"), BY_SCOPE)
def test_a_scope_gives_its_role(scope: str, role: str) -> None:
    for found in (actor(scope=f"openid {scope} profile"), actor(scp=["openid", scope])):
        assert found.role == role
        assert found.role_from == f"scope {scope}"


@pytest.mark.spec("AUTH-4")
@pytest.mark.parametrize("claim", ["pact_role", "lattice_role"])
@pytest.mark.parametrize(("value", "role"), BY_CLAIM)
def test_a_claim_gives_its_role(claim: str, value: str, role: str) -> None:
    claims: dict[str, Any] = {claim: value}
    found = actor(**claims)
    assert found.role == role
    assert found.role_from == f"claim {claim}"


@pytest.mark.spec("AUTH-4")
@given(
    st.lists(st.sampled_from([scope for scope, _ in BY_SCOPE] + ["openid", "email"]), max_size=5),
    st.sampled_from([None, *(value for value, _ in BY_CLAIM), "nonsense", 7]),
    st.sampled_from([None, *(value for value, _ in BY_CLAIM), "nonsense", ["operator"]]),
)
def test_the_first_match_wins_scopes_before_claims(
    scopes: list[str], pact: object, lattice: object
) -> None:
    from_scopes = [role for scope, role in BY_SCOPE if scope in scopes]
    from_claims = [role for given in (pact, lattice) for value, role in BY_CLAIM if given == value]
    expected = min(from_scopes, key=ORDER.index) if from_scopes else (from_claims or ["User"])[0]
    assert actor(scope=" ".join(scopes), pact_role=pact, lattice_role=lattice).role == expected


@pytest.mark.spec("AUTH-4")
@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"scope": ""},
        {"scope": "ADMIN Admin admin2 system:admin: tenant admin:system"},
        {"scope": "administrator system:admins tenant:adminx"},
        {"scope": ["admin"]},
        {"scope": {"admin": True}},
        {"scope": 1},
        {"scp": [["admin"], {"admin": 1}, 7]},
        {"role": "system-admin", "roles": ["admin"], "groups": ["admin"]},
        {"pact_role": "SYSTEM-ADMIN"},
        {"pact_role": ["system-admin"]},
        {"lattice_role": True},
        {"lattice_role": "admin"},
        {"realm_access": {"roles": ["admin"]}},
    ],
    ids=str,
)
def test_nothing_else_gives_a_role(claims: dict[str, Any]) -> None:
    found = actor(**claims)
    assert found.role is Role.USER
    assert found.role_from == "default"


def test_a_scope_that_is_there_hides_scp() -> None:
    assert scopes_of({"scope": "readonly", "scp": ["admin"]}) == {"readonly"}


@pytest.mark.spec("AUTH-11")
def test_where_each_fact_came_from() -> None:
    found = actor(preferred_username="alice", tenant="physics")
    assert (found.user, found.user_from) == ("alice", "claim preferred_username")
    assert (found.tenant, found.tenant_from) == ("physics", "claim tenant")
    names = ClaimNames(user="unix", tenant="org")
    other = actor(names, preferred_username="alice", tenant="physics", unix="al", org="chem")
    assert (other.user, other.user_from) == ("al", "claim unix")
    assert (other.tenant, other.tenant_from) == ("chem", "claim org")
    nobody = actor()
    assert (nobody.user, nobody.user_from, nobody.tenant, nobody.tenant_from) == ("", "", "", "")


@pytest.mark.spec("AUTH-11", "TRY-4")
@pytest.mark.parametrize(
    ("sub", "issuer", "source"),
    [
        ("munge:alice", "lattice", "signed in by MUNGE"),
        ("slurm:alice", "lattice", "signed in by a Slurm token"),
        ("slurm:alice", "https://idp.example", "claim preferred_username"),
        ("other:alice", "lattice", "claim preferred_username"),
    ],
)
def test_a_sign_in_to_the_server_itself_names_its_kind(sub: str, issuer: str, source: str) -> None:
    found = actor(sub=sub, iss=issuer, preferred_username="alice")
    assert (found.user, found.user_from) == ("alice", source)


@pytest.mark.spec("AUTH-4")
@pytest.mark.parametrize("value", [None, "", 7, True, ["alice"], {"alice": 1}])
def test_a_user_or_tenant_is_one_word_or_none(value: object) -> None:
    found = actor(preferred_username=value, tenant=value)
    assert (found.user, found.tenant) == ("", "")


@pytest.mark.spec("AUTH-10")
@pytest.mark.parametrize(
    "claims",
    [
        {"client_id": "s-1", "preferred_username": "alice"},
        {"azp": "s-1", "preferred_username": "alice"},
        {"client_id": "monitor", "preferred_username": "service-account-monitor"},
        {"client_id": "monitor", "azp": "s-1", "preferred_username": "alice"},
    ],
    ids=str,
)
def test_a_service_is_only_whom_the_configuration_says(claims: dict[str, Any]) -> None:
    assert actor(**claims).user == ""
    mapped = actor(ClaimNames(service_accounts={"s-1": "svc-monitor"}), **claims)
    assert mapped.user == "svc-monitor"
    assert "service_accounts" in mapped.user_from
    assert actor(ClaimNames(service_accounts={"s-2": "svc-other"}), **claims).user == ""


def test_a_person_who_signs_in_by_a_client_is_no_service() -> None:
    assert actor(azp="lattice", client_id="lattice", preferred_username="alice").user == "alice"


@given(
    st.dictionaries(
        st.sampled_from(
            ["scope", "scp", "pact_role", "lattice_role", "preferred_username", "tenant", "azp"]
        ),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=6)),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_any_claims_at_all_make_an_actor(claims: dict[str, Any]) -> None:
    found = actor(**claims)
    assert isinstance(found.user, str)
    assert isinstance(found.tenant, str)
    assert all(isinstance(scope, str) for scope in found.scopes)
