"""Low-rank adapters: their memory, their time, who may share a batch, when they come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.rayapi.llm.known import config_of
from raysim.serving.build import engine_on
from raysim.serving.decoder import Decoder, read_decoder
from raysim.serving.engine import LLMEngine, Request, Served
from raysim.serving.lora import Adapters, adapter_bytes
from raysim.serving.settings import engine_settings

NODE = catalog.node("hgx-h100-8")
LLAMA = read_decoder(config_of("meta-llama/Llama-3.1-8B"))
MIXTRAL = read_decoder(config_of("mistralai/Mixtral-8x7B"))
LORA: dict[str, Any] = {"enable_lora": True, "max_model_len": 2048}


def engine(decoder: Decoder = LLAMA, *, stepwise: bool = False, **kwargs: Any) -> LLMEngine:
    made = engine_on(Simulation(), decoder, NODE, engine_settings(kwargs)[0])
    made._stepwise = stepwise
    return made


def played(made: LLMEngine, arrivals: list[tuple[int, Request]]) -> list[Served]:
    done: list[Served] = []
    for at_ns, request in arrivals:
        made.simulation.clock.call_at(at_ns, lambda r: made.submit(r, done.append), request)
    made.simulation.run("10h")
    return done


def test_an_adapter_has_two_matrices_for_every_product() -> None:
    hidden, kv, wide, layers, rank = 4096, 1024, 14_336, 32, 16
    into = (3 + 2 + 1) * hidden  # A of queries, keys and values, of gate and up, of the output
    across = hidden + 2 * kv + 2 * wide + hidden + hidden  # B of qkv, gate and up, output, down
    assert adapter_bytes(LLAMA, rank) == 2 * layers * rank * (into + wide + across)
    assert adapter_bytes(LLAMA, 64) == 4 * adapter_bytes(LLAMA, 16)
    # A of what is split by columns and B of what is split by rows are whole on every rank.
    assert adapter_bytes(LLAMA, rank, ranks=8) > adapter_bytes(LLAMA, rank) / 8


def test_experts_have_adapters_of_their_own() -> None:
    experts = 8 * 2 * 32 * 16 * (2 * 4096 + 2 * 14_336 + 14_336 + 4096)
    attention = 2 * 32 * 16 * (3 * 4096 + 4096 + 2 * 1024 + 4096 + 4096)
    assert adapter_bytes(MIXTRAL, 16) == experts + attention


@pytest.mark.parametrize("ranks", [1, 4])
def test_places_for_adapters_come_out_of_the_cache(ranks: int) -> None:
    without = engine(max_model_len=2048, tensor_parallel_size=ranks).capacity
    eight = engine(**LORA, max_loras=8, tensor_parallel_size=ranks).capacity
    lost = (without.blocks - eight.blocks) * without.block_size * without.kv_bytes_per_token
    one_block = without.block_size * without.kv_bytes_per_token
    assert lost == pytest.approx(8 * adapter_bytes(LLAMA, 16, ranks), abs=one_block)


def test_an_iteration_with_adapters_takes_longer_and_one_without_does_not() -> None:
    request = Request(prompt_tokens=100, output_tokens=50)
    [plain] = played(engine(max_model_len=2048), [(0, request)])
    [unused] = played(engine(**LORA), [(0, request)])
    adapted = Request(prompt_tokens=100, output_tokens=50, adapter="a")
    [used] = played(engine(**LORA), [(0, adapted)])
    assert unused.tpot_s == plain.tpot_s
    # Three kernels of 3 us beside four products of 32 layers, and the adapter's own bytes.
    assert used.tpot_s - plain.tpot_s > 3 * 4 * 32 * 3e-6
    assert used.tpot_s < 1.5 * plain.tpot_s


@given(
    tokens=st.integers(1, 4096), adapters=st.integers(1, 8),
    decoder=st.sampled_from([LLAMA, MIXTRAL]),
)  # fmt: skip
def test_more_tokens_higher_ranks_take_no_less(
    tokens: int, adapters: int, decoder: Decoder
) -> None:
    adapters = min(adapters, tokens)
    low, high = (
        Adapters(made.times, made.settings)
        for made in (engine(decoder, **LORA, max_lora_rank=r, tensor_parallel_size=4)
                     for r in (16, 256))
    )  # fmt: skip
    assert 0 < low.applied_s(tokens, adapters) <= high.applied_s(tokens, adapters)
    assert low.applied_s(tokens, adapters) <= low.applied_s(8 * tokens, adapters) * 1.05
    assert low.applied_s(0, 0) == 0.0


def test_who_finds_no_place_for_its_adapter_is_passed_by() -> None:
    def request(adapter: str | None, tokens: int = 200) -> Request:
        return Request(prompt_tokens=10, output_tokens=tokens, adapter=adapter)

    made = engine(**LORA, max_loras=1)
    asked = [request("a"), request("b"), request("a"), request(None)]
    done = played(made, [(i, r) for i, r in enumerate(asked)])
    assert [o.request.adapter for o in done] == ["a", "a", None, "b"]
    assert done[3].first_token_ns > done[0].finished_ns
    alone = engine(**LORA, max_loras=2)
    assert max(o.first_token_ns for o in played(alone, list(enumerate(asked)))) < 1e9


def test_adapters_stay_where_they_are_until_others_need_the_place() -> None:
    made = engine(**LORA, max_loras=2, max_cpu_loras=3)
    adapters = made.adapters
    assert adapters is not None
    first = adapters.come_s(["a"])
    assert adapters.come_s(["a"]) == 0.0
    adapters.come_s(["b"])
    adapters.come_s(["c"])  # in the place of a, which main memory still has
    again = adapters.come_s(["a"])
    assert 0.0 < again < first
    adapters.come_s(["d"])  # main memory lets b go
    assert adapters.come_s(["b"]) == first
    assert adapters.loads == {"read": 5, "copied": 6}


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 1_000_000_000),
        st.builds(
            Request, prompt_tokens=st.integers(1, 300), output_tokens=st.integers(1, 80),
            adapter=st.sampled_from([None, "a", "b", "c"]),
        ),
    ),
    min_size=1, max_size=15,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(arrivals=ARRIVALS, slots=st.integers(1, 3), seqs=st.integers(1, 8))
def test_stretches_give_the_nanoseconds_of_single_iterations(
    arrivals: list[tuple[int, Request]], slots: int, seqs: int
) -> None:
    results = []
    for stepwise in (False, True):
        made = engine(stepwise=stepwise, **LORA, max_loras=slots, max_num_seqs=seqs)
        most = 0

        def look(_: object, made: LLMEngine = made) -> None:
            nonlocal most
            used = {s.adapter for s, _ in made._parts} - {None}
            most = max(most, len(used))
            if made.load:
                made.simulation.clock.call_later(5_000_000, look)

        made.simulation.clock.call_at(1_000_000_001, look)
        done = played(made, arrivals)
        assert len(done) == len(arrivals)
        assert most <= slots
        assert made.pool.available == made.pool.blocks
        assert made.adapters is not None
        results.append((done, made.iterations, made.busy_ns, made.adapters.loads))
    assert results[0] == results[1]


def test_mistakes_are_named() -> None:
    for wrong, why in (
        ({"max_lora_rank": 20}, "max_lora_rank: expected one of"),
        ({"max_loras": 0}, "max_loras: expected a whole number"),
        ({"max_loras": 4, "max_cpu_loras": 2}, "must be >= max_loras, 4"),
        ({"enable_lora": "yes"}, "enable_lora: expected true or false"),
    ):
        with pytest.raises(ScenarioError, match=why):
            engine_settings(wrong)
    assert engine_settings({"max_cpu_loras": None})[0].max_cpu_loras is None
