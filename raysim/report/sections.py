"""What each section of the page says, from a summary in which every key may be missing or null.

Pure functions from the summary (a plain dict) to rows of text and bars; no HTML, no colours. A
number goes with the formula that made it, in figures, for the reader who points at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raysim.report import charts, money
from raysim.report.peaks import where
from raysim.report.words import (
    DASH,
    Table,
    count,
    likely_words,
    number,
    percent,
    plain,
    plain_text,
    rows,
    seconds,
    size,
    standing_words,
    table,
    tflops,
    usd,
)
from raysim.units import format_bytes, format_count


class Fact(NamedTuple):
    """A label, its value as text, a remark beneath it, and the formula behind it."""

    label: str
    value: str
    note: str = ""
    formula: str = ""


def _facts(*facts: Fact) -> list[Fact]:
    """Those facts that are known."""
    return [f for f in facts if f.value not in {DASH, ""}]


def _join(*parts: str, by: str = " ") -> str:
    """The parts that say something."""
    return by.join(p for p in parts if p and p != DASH)


class Headline(NamedTuple):
    """The numbers under the verdict; ``if_it_fitted`` are kept apart where it does not fit."""

    facts: list[Fact]
    if_it_fitted: list[Fact]


def headline(summary: Table) -> Headline:
    """What matters most: speed, memory and money; memory alone, first, where it does not fit."""
    if table(summary.get("verdict")).get("fits") is False:
        return Headline(_memory(summary), _facts(*_speed(summary), *_money(summary)))
    memory = _memory(summary)[:1]
    return Headline(_facts(*_speed(summary), *memory, *_money(summary)), [])


def _speed(summary: Table) -> list[Fact]:
    """Samples per second, the step, MFU."""
    through, job = table(summary.get("throughput")), table(summary.get("job"))
    took = table(summary.get("step"))
    unit = "tokens" if job.get("sample_unit", "tokens") == "tokens" else str(job["sample_unit"])
    speed = through.get("tokens_per_s" if unit == "tokens" else "samples_per_s")
    samples = number(job.get("global_batch_samples"))
    batch = "" if samples is None else f"{plain_text(samples)} samples per step"
    if unit == "tokens" and samples and (length := number(job.get("seq_len"))):
        batch += f" ({format_count(samples * length)} tokens)"
    per_gpu = number(through.get("tokens_per_s_per_gpu"))
    if per_gpu is None and number(speed) and (ranks := _ranks(summary)):
        per_gpu = (number(speed) or 0.0) / ranks
    hfu = percent(through.get("hfu"))
    return [
        Fact(f"{unit}/s", plain(_round(speed)),
             f"{plain(_round(per_gpu))} {unit}/s/GPU" if per_gpu else "",
             f"{unit}/s = {batch} / {seconds(took.get('seconds'))}" if batch else ""),
        Fact("step", seconds(took.get("seconds")),
             _join(_within(summary, "step_seconds", seconds), batch, by="; "),
             _sum(took.get("breakdown"))),
        Fact("MFU", percent(through.get("mfu")),
             _of(tflops(through.get("model_flops_per_s_per_gpu")),
                 tflops(through.get("peak_flops_per_s")), "per GPU"),
             "MFU = model FLOP/s per GPU / peak FLOP/s; recomputation does not count"
             + ("" if hfu == DASH else f", with it HFU = {hfu}")),
    ]  # fmt: skip


def _within(summary: Table, key: str, form: Callable[[Any], str]) -> str:
    """``90 % in 8.1 s to 10.2 s``, of a number of the ``certainty`` part."""
    found = table(table(summary.get("certainty")).get(key))
    return f"90 % in {form(found['low'])} to {form(found['high'])}" if found else ""


def certainty(summary: Table) -> dict[str, Any]:
    """Intervals in words, and how the job stands to what was measured; {} if nothing is known."""
    known = table(summary.get("certainty"))
    if not known:
        return {}
    return {
        "likely": likely_words(known), "words": standing_words(known),
        "standing": known.get("standing"),
    }  # fmt: skip


def _ranks(summary: Table) -> float:
    """GPUs the job uses; those of the cluster where the summary does not say."""
    job = table(summary.get("job"))
    dp, tp, pp = (number(job.get(axis)) for axis in ("dp", "tp", "pp"))
    return dp * (tp or 1) * (pp or 1) if dp else number(_gpus(summary)) or 0.0


def _memory(summary: Table) -> list[Fact]:
    """Peak of the fullest GPU; what is too much there, and on the host."""
    memory = table(summary.get("memory"))
    host = table(memory.get("host"))
    over, host_peak_bytes = _over(memory, "peak_bytes"), size(host.get("peak_bytes_per_node"))
    host_over = _over(host, "peak_bytes_per_node")
    share = number(memory.get("frac"))
    return _facts(
        Fact("peak memory", size(memory.get("peak_bytes")),
             _join(_join(_of("", size(memory.get("capacity_bytes")), ""),
                         f"({percent(share)})" if share else ""),
                   _within(summary, "memory_peak_bytes", size), by="; "),
             _join("fullest GPU", where(memory), str(memory.get("when") or ""), by=", ")),
        Fact("too much per GPU", over, "", "peak memory - capacity"),
        *_torch_facts(memory),
        Fact("host memory", host_peak_bytes if host_over else "",
             f"of {size(host.get('capacity_bytes'))} per node"),
        Fact("too much per node", host_over, "", "host memory - what the node has"),
    )  # fmt: skip


def _torch_facts(memory: Table) -> list[Fact]:
    """What torch's own counters say, and of a job that does not fit the allocation that fails."""
    failure = table(memory.get("out_of_memory"))
    when = _join(f"rank {plain(failure.get('rank'))}", str(failure.get("when") or ""), by=", ")
    what = _join(str(failure.get("name") or ""), str(failure.get("label") or ""), by=", ")
    return [
        Fact("allocated", size(memory.get("allocated_peak_bytes")), "by torch",
             "torch.cuda.max_memory_allocated"),
        Fact("reserved", size(memory.get("reserved_peak_bytes")), "by torch",
             _join("torch.cuda.max_memory_reserved", str(memory.get("reserved_when") or ""),
                   by=", ")),
        Fact("fails", size(failure.get("tensor_bytes")) if failure else "", what,
             _join(when, str(failure.get("message") or ""), by=": ")),
    ]  # fmt: skip


def _over(memory: Table, key: str) -> str:
    """By how much a peak exceeds its capacity, if it does."""
    peak, capacity = number(memory.get(key)), number(memory.get("capacity_bytes"))
    return format_bytes(peak - capacity) if peak and capacity and peak > capacity else ""


def _money(summary: Table) -> list[Fact]:
    """Duration and cost of the whole run."""
    run, cost = table(summary.get("run")), table(summary.get("cost"))
    hours = number(cost.get("gpu_hours"))
    length = _join(
        f"{plain(run['steps'])} steps" if number(run.get("steps")) else "",
        f"{count(run['tokens'])} tokens" if number(run.get("tokens")) else "",
        by=", ",
    )
    price = _join(plain(_round(hours)), "GPU hours at", usd(cost.get("usd_per_gpu_hour")))
    goodput = table(summary.get("goodput")).get("frac")
    kept = "" if goodput is None else f"goodput {percent(goodput)}"
    return [
        Fact(
            "run",
            seconds(run.get("seconds")),
            _join(kept, length, by="; "),
            _sum(run.get("phases")),
        ),
        Fact(
            "cost", usd(cost.get("usd")), price if hours else "", "GPU hours x price per GPU-hour"
        ),
    ]


def _round(value: Any) -> Any:
    """Whole numbers from 100 up, so that tokens/s has no decimals."""
    known = number(value)
    return round(known) if known is not None and abs(known) >= 100 else value


def _of(part: str, whole: str, after: str) -> str:
    """``part of whole after``, where both are known."""
    return "" if DASH in (part, whole) else _join(part, "of", whole, after)


def _gpus(summary: Table) -> Any:
    """GPUs of the cluster."""
    return table(summary.get("cluster")).get("gpus")


def _sum(parts: Any) -> str:
    """Named durations as a sum."""
    known = [p for p in rows(parts) if number(p.get("seconds"))]
    return " + ".join(f"{p.get('name')} {seconds(p['seconds'])}" for p in known)


def verdict(summary: Table) -> str:
    """The verdict's sentence without the word that stands above it on the page."""
    text = str(table(summary.get("verdict")).get("text") or "")
    for head in ("Fits: ", "Does not fit: "):
        text = text.removeprefix(head)
    return text[:1].upper() + text[1:]


def cluster(summary: Table) -> list[Fact]:
    """What the job runs on."""
    c = table(summary.get("cluster"))
    price = usd(c.get("usd_per_hour"))
    known = [n for n in (number(c.get("gpu_nodes")), number(c.get("gpus_per_node"))) if n]
    shape = ""
    if len(known) == 2:
        shape = f"{known[0]:g} node{'s' * (known[0] != 1)} of {known[1]:g}"
    return _facts(
        Fact("GPUs", _join(plain(c.get("gpus")), "x" if c.get("gpu") else "",
                           str(c.get("gpu") or "")), shape),
        Fact("node", str(c.get("node") or "")),
        Fact("network", str(c.get("network") or "")),
        Fact("fabric", str(c.get("fabric") or "").replace("_", " ")),
        Fact("price", "" if price == DASH else f"{price}/h"),
    )  # fmt: skip


def job(summary: Table) -> list[Fact]:
    """What runs."""
    j = table(summary.get("job"))
    degrees = [(n, number(j.get(n))) for n in ("dp", "tp", "pp")]
    mesh = ", ".join(f"{n} {d:g}" for n, d in degrees if d)
    micro, accumulation = plain(j.get("micro_batch")), plain(j.get("gradient_accumulation_steps"))
    batch = _join("" if micro == DASH else f"micro {micro}",
                  "" if accumulation == DASH else f"x ga {accumulation}",
                  "" if not number(j.get("dp")) else f"x dp {plain(j.get('dp'))}")  # fmt: skip
    whole = plain(j.get("global_batch_samples"))
    ranks = plain(j.get("simulated_ranks"))
    return _facts(
        Fact("model", str(j.get("architecture") or j.get("model") or ""),
             f"{count(j['parameters'])} parameters" if number(j.get("parameters")) else ""),
        Fact("engine", str(j.get("engine") or "")),
        Fact("parallelism", mesh, str(j.get("strategy") or "")),
        Fact("precision", str(j.get("precision") or ""), str(j.get("optimizer") or "")),
        Fact("batch", batch or whole, f"global batch {whole} samples" if whole != DASH else ""),
        Fact("sequence", _join(plain(j.get("seq_len")), "tokens") if j.get("sample_unit", "tokens")
             == "tokens" and number(j.get("seq_len")) else ""),
        Fact("activation checkpointing", str(j.get("activation_checkpointing") or "")),
        Fact("simulated ranks", ranks,
             _simulated(summary)),
    )  # fmt: skip


def _simulated(summary: Table) -> str:
    """What the ranks simulated stand for."""
    if not table(summary.get("job")).get("folded"):
        return "every rank simulated"
    unlike = table(summary.get("goodput")).get("step_inflation_frac")
    return "the slowest of its peers" if unlike else "identical ranks folded into one"


_BUS_FACTOR = {
    "all_reduce": "2(n-1)/n", "all_gather": "(n-1)/n", "reduce_scatter": "(n-1)/n",
    "all_to_all": "(n-1)/n",
}  # fmt: skip
"""Bytes on the bus per byte of the buffer, as nccl-tests' PERFORMANCE.md defines them."""


def collective_formula(row: Table) -> str:
    """How the bus bandwidth of a row comes about."""
    factor = _BUS_FACTOR.get(str(row.get("op")), "1")
    ranks = plain(row.get("group_ranks"))
    return f"bytes x {factor} / seconds, n = {ranks} (nccl-tests)"


class Change(NamedTuple):
    """One change that would help: what, by how much, and whether it fits."""

    text: str
    change: str
    delta: float | None
    fits: bool | None
    left: float
    width: float


def changes(summary: Table) -> list[Change]:
    """Finite differences, the largest first as the summary orders them."""
    found = rows(summary.get("would_help"))
    deltas = [number(row.get("step_delta_frac")) for row in found]
    bars = charts.tornado([d or 0.0 for d in deltas])
    return [
        Change(str(row.get("text") or row.get("change") or ""), str(row.get("change") or ""), delta,
               row.get("fits") if isinstance(row.get("fits"), bool) else None, *bar)
        for row, delta, bar in zip(found, deltas, bars, strict=True)
    ]  # fmt: skip


def run_facts(summary: Table) -> list[Fact]:
    """Duration of the whole run."""
    run = table(summary.get("run"))
    return _facts(
        Fact("whole run", seconds(run.get("seconds"))),
        Fact("optimizer steps", plain(run.get("steps"))),
        Fact("skipped for overflow", plain(run.get("skipped_steps") or None)),
        Fact("epochs", plain(run.get("epochs"))),
        Fact("one epoch", seconds(run.get("epoch_seconds"))),
        Fact("start-up", seconds(run.get("startup_seconds"))),
        Fact("evaluation", seconds(run.get("evaluation_seconds") or None)),
        Fact("checkpoints", seconds(run.get("checkpoint_seconds") or None)),
        *_checkpoint_facts(table(run.get("checkpoint"))),
        Fact("tokens", count(run.get("tokens"))),
    )


def _checkpoint_facts(save: Table) -> list[Fact]:
    """Of one save and one load."""
    if not save:
        return []
    written = f"{plain(save.get('files'))} files, {size(save.get('bytes'))}"
    return [
        Fact("one checkpoint", seconds(save.get("seconds")), formula=written),
        Fact("training stands still", seconds(save.get("stall_seconds"))),
        Fact("loading it", seconds(save.get("load_seconds")),
             formula=f"{size(save.get('read_bytes'))} read by all ranks"),
        Fact("main memory for it", size(save.get("host_bytes"))),
    ]  # fmt: skip


def cost_facts(summary: Table) -> list[Fact]:
    """Money."""
    cost, c = table(summary.get("cost")), table(summary.get("cluster"))
    hours, price = plain(_round(cost.get("gpu_hours"))), usd(cost.get("usd_per_gpu_hour"))
    spares = number(table(summary.get("goodput")).get("spare_nodes"))
    spare = f" and those of {spares:g} spare node{'s' * (spares != 1)}" if spares else ""
    around = money.range_usd(summary)
    between = f"90 % in {money.dollars(around[0])} to {money.dollars(around[1])}" if around else ""
    return _facts(
        Fact("whole run", usd(cost.get("usd")), between, formula=f"{hours} GPU-hours x {price}"),
        Fact("GPU-hours", hours, formula=f"{plain(_gpus(summary))} GPUs{spare} x run time"),
        Fact("price per GPU-hour", price,
             formula=f"{usd(c.get('usd_per_hour'))}/h for the cluster / its GPUs"),
        Fact("per optimizer step", usd(money.step_usd(summary)),
             formula=f"{usd(c.get('usd_per_hour'))}/h x the step"),
        Fact("per million tokens", usd(cost.get("usd_per_million_tokens")),
             formula="cost of the whole run / its tokens, failures and start-up included"),
        Fact("per epoch", usd(cost.get("usd_per_epoch"))),
        Fact("lost to failures and slow machines", usd(money.lost_usd(summary)),
             formula="(1 - goodput) x cost of the whole run"),
        Fact("electricity", _kwh(table(summary.get("energy"))), _grid(summary),
             formula="power of GPUs, cores and memory by what they do x PUE x run time"),
    )  # fmt: skip


def _grid(summary: Table) -> str:
    """What CO2e goes by, or how to have it."""
    energy = table(summary.get("energy"))
    if number(energy.get("kwh")) is None:
        return ""
    grams = number(energy.get("gco2e_per_kwh"))
    power = f"PUE {plain(energy.get('pue'))}"
    if grams is None:
        return f"{power}; cluster.gco2e_per_kwh of your grid gives CO2e"
    return f"{power}, {grams:g} g CO2e per kWh"


def _kwh(energy: Table) -> str:
    used, grams = number(energy.get("kwh")), number(energy.get("kg_co2e"))
    if used is None:
        return DASH
    return f"{plain(_round(used))} kWh" + ("" if grams is None else f", {plain(grams)} kg CO2e")


_SHARES = {"mfu", "hfu", "gpu_mem_peak", "goodput"}


def metric(name: str, value: Any) -> str:
    """A value of one of the metrics that targets and references name."""
    if name in _SHARES:
        return percent(value)
    if name.endswith("seconds"):
        return seconds(value)
    if name == "memory_peak":
        return size(value)
    return usd(value) if name.startswith("usd") else plain(value)


def reached(row: Table) -> str:
    """The value of a target's metric, as its own unit prints it."""
    text = row.get("value_text")
    return text if isinstance(text, str) else metric(str(row.get("name") or ""), row.get("value"))


class Compared(NamedTuple):
    """A prediction beside a measurement."""

    name: str
    predicted: str
    measured: str
    error: float | None


def reference(summary: Table) -> list[Compared]:
    """Predicted and measured, where the scenario brings a measurement."""
    found = []
    for row in rows(table(summary.get("reference")).get("values")):
        name = str(row.get("name") or "")
        predicted, measured = metric(name, row.get("predicted")), metric(name, row.get("measured"))
        error = number(row.get("error_frac"))
        found.append(Compared(name.replace("_", " "), predicted, measured, error))
    return found
