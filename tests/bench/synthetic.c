#include "tests/bench/synthetic.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double normal_at(uint64_t seed, uint64_t stream, uint64_t counter) {
    double a = rng_unit(rng_at(seed, stream, 2 * counter)) + 1e-18;
    double b = rng_unit(rng_at(seed, stream, 2 * counter + 1));
    return sqrt(-2 * log(a)) * cos(2 * M_PI * b);
}

enum { SESSIONS = 200, CHUNKS = 8 };
static char names[SESSIONS][16];

/* One call of turn `turn`; returns its end in ns. */
static int64_t call(struct run *r, const struct synthetic *how, uint32_t lane, uint32_t session,
                    uint32_t play, uint32_t turn, int64_t start, double speed) {
    uint64_t n = r->n_records, of = rng_mix(session * 1000 + turn);
    struct call_record *c = run_record(r);
    if (!c)
        abort();
    double heavy = exp(0.5 * normal_at(how->sessions, session, 0));
    double in = 1500 * heavy * (turn + 1) * exp(0.3 * normal_at(how->sessions, of, 1));
    double out = 2 + 60 * exp(0.6 * normal_at(how->sessions, of, 2));
    double busy = exp(0.15 * normal_at(how->noise, play + 77, 3)); /* whole play on a slow moment */
    double ttft = (0.03 + in * 2e-5) * exp(0.25 * normal_at(how->noise, n, 4)) * busy * speed;
    double itl = 0.011 * exp(0.10 * normal_at(how->noise, n, 5)) * busy * speed *
                 (1 + 0.1 * normal_at(how->sessions, session, 6) * 0.5);
    c->phase = PHASE_PROFILING;
    c->lane = lane;
    c->play = play;
    c->turn = turn;
    c->number = n;
    c->root = true;
    c->conversation = names[session];
    c->in = c->in_expected = (uint64_t)in;
    c->out = c->out_expected = (uint64_t)out;
    c->in_source = c->out_source = COUNT_USAGE;
    c->has_cached = true;
    c->cached = turn ? c->in * 3 / 4 : 0;
    c->due = c->start = start;
    c->ack = start + (int64_t)(ttft * 0.5e9);
    double last = itl * ((double)c->out - 1);
    for (int i = 0; i < CHUNKS; i++)
        if (!call_record_chunk(c, start + (int64_t)((ttft + last * i / (CHUNKS - 1)) * 1e9)))
            abort();
    c->end = c->chunk[CHUNKS - 1] + 200000;
    return c->end;
}

static void lane_of(struct run *r, const struct synthetic *how, uint32_t lane, double speed) {
    int64_t now = r->profiling_started + lane * 1000000;
    for (uint32_t nth = 0; now < r->profiling_ended; nth++) {
        uint32_t session = (lane + nth * how->lanes) % SESSIONS, play = lane + nth * how->lanes;
        uint32_t turns = 3 + (uint32_t)(rng_at(how->sessions, session, 7) % 8);
        for (uint32_t turn = 0; turn < turns && now < r->profiling_ended; turn++) {
            now = call(r, how, lane, session, play, turn, now, speed);
            now += (int64_t)(0.2e9 * exp(0.5 * normal_at(how->sessions, session * 64 + turn, 8)));
        }
    }
}

void synthesise(struct run *out, const struct synthetic *how) {
    for (uint32_t i = 0; i < SESSIONS; i++)
        snprintf(names[i], sizeof names[i], "s%u", i);
    int64_t begin = how->started
                        ? how->started
                        : 1760000000000000000 + (int64_t)(how->noise % 100000) * 1000000000;
    *out = (struct run){.concurrency = how->lanes, .time_scale = 1, .length_scale = 1};
    out->subject =
        (struct run_subject){.hardware = strdup("h200"),
                             .framework = strdup("weir"),
                             .framework_version = strdup(how->version ? how->version : "0.1.0"),
                             .model = strdup("tiny-k3"),
                             .precision = strdup("bf16"),
                             .label = how->label ? strdup(how->label) : NULL,
                             .tp = 2,
                             .allocated_dram_gb = NAN};
    out->scenario = strdup("fixed-length");
    out->dataset = strdup("synthetic");
    out->config = json_pack("{s:i, s:s, s:s}", "concurrency", (int)how->lanes, "trace", "s.jsonl",
                            "framework-version", how->version ? how->version : "0.1.0");
    out->started = begin - 10000000000;
    out->profiling_started = begin;
    out->profiling_ended = begin + (int64_t)(how->seconds * 1e9);
    double speed = how->slower * exp(how->run_noise * normal_at(how->noise, 9, 9));
    for (uint32_t lane = 0; lane < how->lanes; lane++)
        lane_of(out, how, lane, speed);
    out->ended = out->profiling_ended + 5000000000;
    for (uint32_t i = 0; i < out->n_records; i++) /* calls under way still end */
        if (out->records[i].end > out->ended)
            out->ended = out->records[i].end;
}
