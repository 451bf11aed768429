#!/usr/bin/env python3
"""Counts the figures of a run again from its records alone, with formulas of its own, and compares
every one with the summary, its CSV twin and the InferenceX aggregate.

    reaggregate.py DIR              check the files of one run
    reaggregate.py --mutants DIR    also: each figure altered must be found out

Reads profile_export.jsonl; of run.json only what records cannot tell (parallel sizes, times of the
phase). Exit status 1 with one line for each difference. Standard library only."""
import copy
import csv
import json
import math
import os
import statistics
import sys
from fractions import Fraction


def refuse_constant(text):
    raise ValueError(f"{text} is not JSON")


def parse(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f, parse_constant=refuse_constant)


def parse_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line, parse_constant=refuse_constant) for line in f if line.strip()]


# ------------------------------------------------------------------------------ from the records


def value(record, name):
    return record["metrics"].get(name, {}).get("value")


def kept(record):
    return (
        record["metadata"]["benchmark_phase"] == "profiling"
        and record["error"] is None
        and not record["metadata"]["was_cancelled"]
        and not record["weir"]["skipped"]
    )


def rank(ordered, p):
    """Linear between ranks, in fractions so that no rounding hides an off-by-one."""
    k = Fraction(len(ordered) - 1) * Fraction(p) / 100
    below = k.numerator // k.denominator
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + float(k - below) * (ordered[above] - ordered[below])


def describe(values, positive=True):
    good = sorted(v for v in values if v is not None and math.isfinite(v) and (v > 0 or not positive))
    if not good:
        return None
    d = {f"p{p}": rank(good, p) for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
    d.update(
        avg=statistics.fmean(good), min=good[0], max=good[-1], std=statistics.pstdev(good), sum=math.fsum(good),
        count=len(good),
    )
    return d


def reciprocal(d, values):
    """Of a latency: what interactivity is at the same percentile, the slow tail."""
    if not d:
        return None
    r = {k: 1 / d[k] for k in d if k.startswith("p")}
    r["avg"] = 1 / d["avg"]
    r["std"] = statistics.pstdev([1 / v for v in values if v and v > 0])
    return r


class Run:
    """Times in seconds, made from whole nanoseconds."""

    def __init__(self, directory):
        records = parse_lines(os.path.join(directory, "profile_export.jsonl"))
        config = parse(os.path.join(directory, "run.json"))
        subject = config["subject"]
        self.config = config
        self.records = records
        timeline = os.path.join(directory, "timeline.jsonl")
        self.samples = parse_lines(timeline) if os.path.exists(timeline) else []
        self.kept = [r for r in records if kept(r)]
        self.gpus = (subject["tp"] or 1) * (subject["pp"] or 1) * (subject["pcp"] or 1)
        self.ttft, self.ttst, self.latency, self.icl = [], [], [], []
        self.itl, self.full_itl, self.norm, self.prefill = [], [], [], []
        self.isl, self.osl, self.text, self.expected = [], [], [], []
        for r in self.kept:
            self.add(r)

    def add(self, r):
        start = r["metadata"]["request_start_ns"]
        end = r["metadata"]["request_end_ns"]
        first = value(r, "time_to_first_token")
        gaps = value(r, "inter_chunk_latency")
        n_in, n_out = value(r, "input_sequence_length"), value(r, "output_sequence_length")
        self.isl.append(n_in)
        self.osl.append(n_out)
        self.expected.append(r["weir"]["output_expected"])
        self.text.append(None if n_out is None else n_out - (value(r, "reasoning_token_count") or 0))
        if first is None:
            return
        # From the first arrival and the gaps, not from the latency that stands in the record.
        at = [start + round(first * 1e6)]
        for gap in gaps or []:
            at.append(at[-1] + round(gap * 1e6))
        if gaps is None and r["weir"]["chunks"] > 1:
            at.append(start + round(value(r, "request_latency") * 1e6))
        self.ttft.append((at[0] - start) / 1e9)
        self.latency.append((at[-1] - start) / 1e9)
        if gaps:
            self.ttst.append((at[1] - at[0]) / 1e9)
            self.icl += [(b - a) / 1e9 for a, b in zip(at, at[1:])]
        if n_out is not None and n_out >= 2:
            self.itl.append((at[-1] - at[0]) / (n_out - 1) / 1e9)
            self.full_itl.append((end - at[0]) / (n_out - 1) / 1e9)
        if n_out:
            self.norm.append((at[-1] - start) / n_out / 1e9)
        if n_in is not None and at[0] > start:
            self.prefill.append(n_in / ((at[0] - start) / 1e9))

    def span(self):
        if not self.kept:
            return None
        starts = [r["metadata"]["request_start_ns"] for r in self.kept]
        ends = [r["metadata"]["request_end_ns"] for r in self.kept]
        return min(starts), max(ends)

    def seconds(self):
        span = self.span()
        return (span[1] - span[0]) / 1e9 if span else None

    def per_second(self, amount):
        seconds = self.seconds()
        return amount / seconds if seconds else None

    def qps(self):
        span = self.span()
        if not span:
            return []
        windows = [0] * ((span[1] - span[0]) // 10**9 + 1)
        for r in self.kept:
            windows[(r["metadata"]["request_end_ns"] - span[0]) // 10**9] += 1
        return windows

    def total(self, counts):
        return sum(n for n in counts if n is not None)

    def failed(self):
        return [r for r in self.records if r["metadata"]["benchmark_phase"] == "profiling" and not kept(r)
                and not r["weir"]["skipped"] and not r["metadata"]["was_cancelled"]
                and (r["error"] or {}).get("type") != "cancelled"]

    def coverage(self):
        begin, end = self.config["profiling_started_ns"], self.config["profiling_ended_ns"]
        sent = [r["metadata"] for r in self.records
                if r["metadata"]["benchmark_phase"] == "profiling" and r["metadata"]["request_start_ns"]]
        begin = begin or min((m["request_start_ns"] for m in sent), default=0)
        end = end or max((m["request_end_ns"] or 0 for m in sent), default=0)
        if end <= begin:
            return None
        shares = []
        for name in ("time_to_first_token", "inter_token_latency"):
            of = [r["metadata"] for r in self.kept if (value(r, name) or 0) > 0]
            low = max([begin, min((m["request_start_ns"] for m in of), default=end)])
            high = min([end, max((m["request_end_ns"] for m in of), default=begin)])
            shares.append(max(0, high - low) / (end - begin))
        return min(shares)


# ------------------------------------------------------------------------------------ comparison

STATS = ("avg", "min", "max", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std")


def expected_summary(run):
    """Of each metric: statistics, or one number; in the units of the file; and its decimals."""
    ms = lambda values: describe([v * 1e3 for v in values])
    rate = [1 / v for v in run.itl if v > 0]
    total_in, total_out = run.total(run.isl), run.total(run.osl)
    return {
        "request_throughput": (run.per_second(len(run.kept)), 5),
        "request_latency": (ms(run.latency), 6),
        "request_count": (len(run.kept), 0),
        "time_to_first_token": (ms(run.ttft), 6),
        "time_to_second_token": (ms(run.ttst), 6),
        "inter_token_latency": (ms(run.itl), 6),
        "full_response_inter_token_latency": (ms(run.full_itl), 6),
        "inter_chunk_latency": (ms(run.icl), 6),
        "output_token_throughput": (run.per_second(total_out), 5),
        "output_token_throughput_per_user": (describe(rate), 5),
        "prefill_throughput": (describe(run.prefill), 5),
        "total_token_throughput": (run.per_second(total_in + total_out), 5),
        "output_sequence_length": (describe(run.osl), 5),
        "output_token_count": (describe(run.text), 5),
        "input_sequence_length": (describe(run.isl), 5),
        "total_isl": (total_in, 0),
        "total_osl": (total_out, 0),
        "goodput": (None, 5),
        "good_request_count": (None, 0),
        "benchmark_duration": (run.seconds(), 9),
        "error_request_count": (len(run.failed()), 0),
    }


class Check:
    def __init__(self):
        self.faults = []
        self.figures = 0

    def number(self, where, is_, wanted, decimals):
        self.figures += 1
        if wanted is None or is_ is None:
            ok = wanted is None and is_ is None
        else:
            # Rounded to so many decimals, by summation in another order.
            ok = abs(is_ - wanted) <= 0.5001 * 10**-decimals + 1e-12 * abs(wanted)
        if not ok:
            self.faults.append(f"{where}: {is_}, counted again {wanted}")

    def same(self, where, is_, wanted):
        self.figures += 1
        if is_ != wanted:
            self.faults.append(f"{where}: {is_!r}, counted again {wanted!r}")

    def statistics(self, where, is_, wanted, decimals, names):
        for name, key in names.items():
            self.number(f"{where}.{name}", is_[name], wanted[key] if wanted else None, decimals)


def check_summary(check, summary, run):
    for name, (wanted, decimals) in expected_summary(run).items():
        got = summary[name]
        if isinstance(wanted, dict) or "sum" in got:
            names = {s: s for s in STATS}
            names["sum"] = "sum"
            check.statistics(name, got, wanted, decimals, names)
            check.same(f"{name}.count", got["count"], wanted["count"] if wanted else 0)
        else:
            check.number(f"{name}.avg", got["avg"], wanted, decimals)
            for s in STATS[1:]:
                check.same(f"{name}.{s}", got[s], None)
    errors = {}
    for r in run.records:
        if r["error"] and r["metadata"]["benchmark_phase"] == "profiling":
            kind = (r["error"]["code"], r["error"]["type"])
            errors[kind] = errors.get(kind, 0) + 1
    got = {(e["error_details"]["code"], e["error_details"]["type"]): e["count"] for e in summary["error_summary"]}
    check.same("error_summary", got, errors)


def check_csv(check, rows, summary):
    """The CSV shows the same figures as the JSON."""
    check.same("csv: names", rows[0], ["Metric", *STATS])
    seen = set()
    for row in rows[1:]:
        name = row[0].split(" (")[0]
        seen.add(name)
        check.same(f"csv: {name} unit", row[0], f"{name} ({summary[name]['unit']})")
        for key, cell in zip(STATS, row[1:]):
            check.same(f"csv: {name}.{key}", float(cell) if cell else None,
                       None if summary[name][key] is None else float(summary[name][key]))
    check.same("csv: metrics", seen, {k for k, v in summary.items() if isinstance(v, dict) and "unit" in v})


INFERENCEX = {"mean": "avg", "p50": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99", "std": "std"}


def check_inferencex(check, o, run):
    m = o["request_metrics"]
    itl, full, norm = describe(run.itl), describe(run.full_itl), describe(run.norm)
    for name, wanted, decimals in (
        ("ttft", describe(run.ttft), 9),
        ("e2el", describe(run.latency), 9),
        ("itl", itl, 9),
        ("tpot", itl, 9),
        ("full_response_itl", full, 9),
        ("intvty", reciprocal(itl, run.itl), 5),
        ("full_response_intvty", reciprocal(full, run.full_itl), 5),
        ("e2e_norm_intvty", reciprocal(norm, run.norm), 5),
    ):
        check.statistics(f"latency.{name}", m["latency"][name], wanted, decimals, INFERENCEX)
    check.statistics("qps", m["qps"], describe(run.qps(), positive=False), 5, INFERENCEX)
    for name, counts in (("input", run.isl), ("output_actual", run.osl), ("output_expected", run.expected)):
        check.statistics(f"tokens.{name}", m["tokens"][name], describe(counts), 5, INFERENCEX)
    total_in, total_out = run.total(run.isl), run.total(run.osl)
    t = m["throughput"]
    for name, amount in (("input", total_in), ("output", total_out), ("total", total_in + total_out)):
        rate = run.per_second(amount)
        check.number(f"throughput.{name}", t[name]["tokens_per_second"], rate, 5)
        check.number(f"per_gpu.{name}", t["per_gpu"][f"{name}_tput_tps"],
                     None if rate is None else rate / run.gpus, 5)
    check.number("duration", t["duration_seconds"], run.seconds(), 9)
    blocks = sum(r["weir"]["blocks"] for r in run.kept)
    hits = sum(r["weir"]["hit_blocks"] for r in run.kept)
    check.number("theoretical_cache_hit_rate", m["cache"]["theoretical_cache_hit_rate"],
                 hits / blocks if blocks else None, 5)
    check.number("kv_cache_pool_tokens", o["kv_cache_pool_tokens"],
                 next((x["kv_total_tokens"] for x in reversed(run.samples) if x["kv_total_tokens"] is not None), None), 5)
    check_accounting(check, o, run)
    check_server(check, o["server_metrics"], run.samples)


def check_accounting(check, o, run):
    a = o["request_accounting"]
    warm = [r for r in run.records if r["metadata"]["benchmark_phase"] != "profiling"]
    profiled = len(run.records) - len(warm)
    check.same("records_total", a["records_total"], len(run.records))
    check.same("records_profiled", a["records_profiled"], profiled)
    check.same("records_dropped_total", a["records_dropped_total"], len(run.records) - len(run.kept))
    check.same("records_warmup_dropped", a["records_warmup_dropped"], len(warm))
    check.same("records_error_dropped", a["records_error_dropped"], profiled - len(run.kept))
    check.same("error_categories", sum(a["error_categories"].values()), profiled - len(run.kept))
    check.same("num_requests_total", o["num_requests_total"], profiled)
    check.same("num_requests_successful", o["num_requests_successful"], len(run.kept))


def check_server(check, o, samples):
    """What the server counted, out of the first and the last sample; nothing where a counter fell between them."""
    def grew(name):
        if len(samples) < 2 or samples[0][name] is None or samples[-1][name] is None:
            return None
        known = [x[name] for x in samples if x[name] is not None]
        return known[-1] - known[0] if known == sorted(known) else None

    def mean(name):
        known = [x[name] for x in samples if x[name] is not None]
        return statistics.fmean(known) if known else None

    def over(part, whole):
        return part / whole if part is not None and whole else None

    def times(factor, x):
        return None if x is None else factor * x

    def last(name):
        return samples[-1][name] if samples else None

    first_known = lambda a, b: a if a is not None else b
    prompt = first_known(grew("prompt_tokens"), grew("query_tokens"))
    local = first_known(grew("device_tokens"), grew("hit_tokens"))
    tiers = [t for t in map(grew, ("host_tokens", "disk_tokens", "remote_tokens")) if t is not None]
    external = sum(tiers) if tiers else grew("external_hit_tokens")
    if external is not None:
        overall = over(None if local is None else local + external, prompt)
    else:
        overall = over(grew("hit_tokens"), grew("query_tokens"))
    gb_s = lambda b, t: over(grew(b), grew(t))
    wanted = {
        "cache": {
            "gpu_cache_hit_rate": over(local, prompt), "cpu_cache_hit_rate": over(grew("host_tokens"), prompt),
            "external_cache_hit_rate": over(external, prompt), "overall_cache_hit_rate": overall,
            "prefix_cache_hits": grew("hit_tokens"), "prefix_cache_queries": grew("query_tokens"),
            "external_prefix_cache_hits": grew("external_hit_tokens"),
            "external_prefix_cache_queries": grew("external_query_tokens"), "frontend_cache_hit_rate": None,
            "router_kv_hit_rate": None, "router_shared_cache_hit_rate": None, "frontend_cached_tokens": None,
            "frontend_input_tokens": None,
        },
        "kv_cache": {
            "gpu_usage_pct": times(100, mean("kv_usage")), "gpu_total_tokens": last("kv_total_tokens"),
            "cpu_usage_pct": times(100, mean("host_usage")), "cpu_used_tokens": last("host_used_tokens"),
            "cpu_total_tokens": last("host_total_tokens"),
        },
        "kv_offload": {
            "bytes_gpu_to_cpu": grew("bytes_out"), "bytes_cpu_to_gpu": grew("bytes_in"),
            "time_gpu_to_cpu": grew("seconds_out"), "time_cpu_to_gpu": grew("seconds_in"),
            "bandwidth_gpu_to_cpu_bytes_per_second": gb_s("bytes_out", "seconds_out"),
            "bandwidth_cpu_to_gpu_bytes_per_second": gb_s("bytes_in", "seconds_in"),
        },
        "tokens": {
            "prompt_total": grew("prompt_tokens"), "generation_total": grew("generated_tokens"),
            "requests_completed": grew("requests_done"),
        },
    }
    for part, names in wanted.items():
        for name, x in names.items():
            check.number(f"server.{part}.{name}", o[part][name], x, 9 if name.startswith("time_") else 5)
    by = o["tokens"]["prompt_by_source"]
    check.number("server.gpu_cache_hit", by["gpu_cache_hit"], local, 5)
    check.number("server.cpu_or_external_cache_hit", by["cpu_or_external_cache_hit"], external, 5)
    check.number("server.computed", by["computed"], grew("computed_tokens"), 5)
    for name, x in by["raw"].items():
        check.number(f"server.raw.{name}", x, grew(name), 5)
    for name, x in o["cache"]["cached_tokens_by_source"].items():
        check.number(f"server.by_source.{name}", x, grew(f"{name}_tokens"), 5)
    check.same("server.metric_count", o["metric_count"],
               sum(v is not None for k, v in samples[-1].items() if k != "at_ns") if samples else 0)
    check.same("server.present", o["present"], o["metric_count"] > 0)


def check_config(check, config, run):
    v = config["validity"]
    check.number("coverage", v["coverage"], run.coverage(), 5)
    check.same("calls.kept", config["calls"]["kept"], len(run.kept))
    check.same("calls.failed", config["calls"]["failed"], len(run.failed()))
    check.same("submission_valid", v["submission_valid"], not v["submission_invalid_reasons"])
    told = [r for r in run.kept if r["weir"]["cached_tokens"] is not None]
    prompt = sum(value(r, "input_sequence_length") or 0 for r in told)
    cached = sum(r["weir"]["cached_tokens"] for r in told)
    check.number("cached_share", config["cached_share"], cached / prompt if prompt else None, 5)
    sent = sum(r["weir"]["input_expected"] for r in run.kept)
    if any(r["weir"]["blocks"] for r in run.kept):
        check.number("theoretical_hit_tokens", config["theoretical_hit_tokens"],
                     sum(r["weir"]["hit_tokens"] for r in run.kept) / sent if sent else None, 5)
    failed, done = len(run.failed()), len(run.kept) + len(run.failed())
    too_many = any(x.startswith("failed_request_rate") for x in v["submission_invalid_reasons"])
    check.same("failed_request_rate", too_many, done > 0 and failed / done > 0.10)
    coverage = run.coverage()
    check.same("metric_coverage",
               any(x.startswith("insufficient_profile_metric_coverage") for x in v["submission_invalid_reasons"]),
               not (coverage is not None and coverage >= 0.98))


def check_records(check, run):
    """What a record says of itself follows from its own arrivals."""
    for r in run.kept:
        name = r["metadata"]["x_request_id"]
        first, latency = value(r, "time_to_first_token"), value(r, "request_latency")
        gaps, n_out = value(r, "inter_chunk_latency"), value(r, "output_sequence_length")
        if gaps is not None:
            check.number(f"{name}: request_latency", latency, first + math.fsum(gaps), 6)
            check.same(f"{name}: chunks", r["weir"]["chunks"], len(gaps) + 1)
        itl = (latency - first) / (n_out - 1) if first is not None and n_out is not None and n_out > 1 else None
        check.number(f"{name}: inter_token_latency", value(r, "inter_token_latency"), itl, 6)
        # From the arrivals: the latency that stands there is rounded already.
        exact = math.fsum(gaps) if gaps else (latency - first if latency is not None else None)
        rate = 1e3 * (n_out - 1) / exact if itl is not None and exact > 0 else None
        check.number(f"{name}: per user", value(r, "output_token_throughput_per_user"), rate, 5)


def read(directory):
    with open(os.path.join(directory, "profile_export_aiperf.csv"), encoding="utf-8", newline="") as f:
        rows = list(csv.reader(f))
    return {
        "summary": parse(os.path.join(directory, "profile_export_aiperf.json")),
        "inferencex": parse(os.path.join(directory, "inferencex.json")),
        "config": parse(os.path.join(directory, "run.json")),
        "csv": rows,
    }


def check_all(run, files):
    check = Check()
    check_records(check, run)
    check_summary(check, files["summary"], run)
    check_csv(check, files["csv"], files["summary"])
    check_inferencex(check, files["inferencex"], run)
    check_config(check, files["config"], run)
    return check


# ---------------------------------------------------------------------------------------- mutants

# Of a summary's figures, those that do not follow from records.
FREE = {"start_time", "end_time", "input_config", "metadata", "was_cancelled"}


def figures(o, path=()):
    """Places of numbers in a JSON value."""
    for key in o if isinstance(o, dict) else range(len(o)):
        at, v = path + (key,), o[key]
        if isinstance(v, (dict, list)):
            yield from figures(v, at)
        elif isinstance(v, (int, float)) and not isinstance(v, bool):
            yield at


def mutate(o, path):
    for key in path[:-1]:
        o = o[key]
    v = o[path[-1]]
    # The least that rounding lets one see, and never back to the same number.
    o[path[-1]] = v + 1 if isinstance(v, int) else v + max(2e-5, abs(v) * 1e-6)


def mutants(run, files):
    places = [("summary", p) for p in figures(files["summary"]) if p[0] not in FREE]
    places += [("inferencex", p) for p in figures(files["inferencex"])
               if p[0] in ("request_metrics", "request_accounting", "num_requests_total", "num_requests_successful", "server_metrics",
                            "kv_cache_pool_tokens")]
    # The row of names aside, every cell that holds a number.
    cells = [(i, k) for i, row in enumerate(files["csv"]) for k, c in enumerate(row) if i and k and c]
    missed = []
    for file, path in places:
        altered = dict(files)
        altered[file] = copy.deepcopy(files[file])
        mutate(altered[file], path)
        if not check_all(run, altered).faults:
            missed.append(f"{file}: {'.'.join(map(str, path))}")
    for i, k in cells[:: max(1, len(cells) // 40)]:
        altered = dict(files, csv=copy.deepcopy(files["csv"]))
        altered["csv"][i][k] = repr(float(altered["csv"][i][k]) + 1e-3)
        if not check_all(run, altered).faults:
            missed.append(f"csv: {i}, {k}")
    return len(places) + len(cells[:: max(1, len(cells) // 40)]), missed


def main(argv):
    with_mutants = "--mutants" in argv
    directories = [a for a in argv if not a.startswith("--")]
    if not directories:
        print(__doc__)
        return 2
    bad = 0
    for directory in directories:
        run, files = Run(directory), read(directory)
        check = check_all(run, files)
        for fault in check.faults[:20]:
            print(f"{directory}: {fault}")
        print(f"{directory}: {len(run.records)} records, {check.figures} figures, {len(check.faults)} differ")
        bad += bool(check.faults)
        if with_mutants:
            n, missed = mutants(run, files)
            for m in missed[:20]:
                print(f"{directory}: altered and not found out: {m}")
            print(f"{directory}: {n} figures altered one by one, {len(missed)} not found out")
            bad += bool(missed) or n == 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
