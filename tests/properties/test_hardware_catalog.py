"""Whatever name is asked for, the catalog gives one spec or one line that says what is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.hardware import catalog

KINDS = ("gpu", "nic", "disk", "object_storage", "cpu", "node")


@given(kind=st.sampled_from(KINDS), text=st.text(max_size=40))
def test_any_text_is_a_spec_or_a_one_line_refusal(kind, text):
    if text.strip().lower() in catalog._aliases(kind):
        assert getattr(catalog, kind)(text).name in catalog.names(kind)
        return
    with pytest.raises(ScenarioError) as error:
        getattr(catalog, kind)(text)
    assert len(str(error.value).splitlines()) == 1
    assert repr(text) in str(error.value)


@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_a_name_in_any_case_is_the_same_object(data, kind):
    name = data.draw(st.sampled_from(catalog.names(kind)))
    upper = data.draw(st.lists(st.booleans(), min_size=len(name), max_size=len(name)))
    spelled = "".join(c.upper() if up else c.lower() for c, up in zip(name, upper, strict=True))
    assert getattr(catalog, kind)(f" {spelled} ") is getattr(catalog, kind)(name)


@given(data=st.data(), kind=st.sampled_from(("node", "gpu", "nic")))
def test_a_name_with_one_slip_of_the_pen_is_answered_with_the_name(data, kind):
    name = data.draw(st.sampled_from([n for n in catalog.names(kind) if len(n) > 5]))
    at = data.draw(st.integers(0, len(name) - 1))
    slip = name[:at] + "q" + name[at + 1 :]
    with pytest.raises(ScenarioError) as error:
        getattr(catalog, kind)(slip)
    suggestions = str(error.value).partition("nearest: ")[2].partition(";")[0]
    assert suggestions, "a near name must be suggested"
    assert all(s in catalog.names(kind) for s in suggestions.rstrip(")").split(", "))


@given(data=st.data())
def test_a_slice_of_a_host_never_has_more_than_the_host(data):
    node = catalog.node(data.draw(st.sampled_from(catalog.names("node"))))
    host = catalog.cpu(node.cpu.name.partition("/")[0])
    assert node.cpu.cores <= host.cores
    assert node.cpu.sockets <= host.sockets
    share = node.cpu.cores / host.cores
    assert node.cpu.memory_bytes_per_s == pytest.approx(host.memory_bytes_per_s * share)
    assert node.cpu.flops_per_s == pytest.approx(host.flops_per_s * share)
