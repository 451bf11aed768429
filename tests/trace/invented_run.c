#include "tests/trace/invented_run.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static double unit(void) {
    return rng_unit(rng_mix(state++));
}

static int64_t between(int64_t low, int64_t high) {
    return low + (int64_t)(unit() * (double)(high - low + 1));
}

static bool one_in(int n) {
    return between(1, n) == 1;
}

struct call_record *invent_call(struct run *r, int64_t start, int64_t ttft, int64_t itl,
                                uint64_t in, uint64_t out) {
    struct call_record *c = run_record(r);
    if (!c)
        abort();
    c->phase = PHASE_PROFILING;
    c->number = r->n_records - 1;
    c->conversation = "s1";
    c->root = true;
    c->due = c->start = start;
    c->ack = start + 1000;
    c->in = c->in_expected = in;
    c->out = c->out_expected = out;
    c->in_source = c->out_source = COUNT_USAGE;
    for (uint64_t i = 0; i < out; i++)
        if (!call_record_chunk(c, start + ttft + itl * (int64_t)i))
            abort();
    c->end = start + ttft + itl * (int64_t)(out ? out - 1 : 0) + 500000;
    return c;
}

static void spoil(struct call_record *c) {
    static const char *const types[] = {"http", "closed", "timeout", "protocol"};
    if (one_in(9)) {
        snprintf(c->error_type, sizeof c->error_type, "%s", types[between(0, 3)]);
        c->error_code = one_in(2) ? 500 : 0;
        snprintf(c->error_message, sizeof c->error_message, "invented, with \"quotes\" and \xff");
    } else if (one_in(25)) {
        c->was_cancelled = true;
        c->cancelled = c->end;
        snprintf(c->error_type, sizeof c->error_type, "cancelled");
    } else if (one_in(40)) {
        c->skipped = true;
        c->start = c->ack = c->end = 0;
        c->n_chunks = 0;
    } else if (one_in(15)) {
        c->out_source = COUNT_UNKNOWN;
    } else if (one_in(15)) {
        c->length_missed = true;
        c->out += 3;
    }
}

static void one_call(struct run *r, uint32_t i) {
    static const char *const names[] = {"s1", "s2", "a longer name of a session", "s4"};
    uint64_t tokens = (uint64_t)(one_in(8) ? 1 : between(1, 60));
    struct call_record *c =
        invent_call(r, 1760000000000000000 + between(0, 90000000000), between(1000000, 900000000),
                    between(0, 40000000), (uint64_t)between(1, 9000), tokens);
    c->phase = i % 11 == 0 ? PHASE_PRIMER : i % 11 < 3 ? PHASE_WARMUP : PHASE_PROFILING;
    c->conversation = names[i % 4];
    c->lane = i % 4;
    c->play = i / 20;
    c->turn = i % 20;
    c->request = i % 50;
    snprintf(c->server_id, sizeof c->server_id, "cmpl-%u", i);
    for (uint32_t k = 1; k < c->n_chunks; k++) { /* uneven gaps, in whole ns */
        c->chunk[k] = c->chunk[k - 1] + between(0, 50000000);
        c->end = c->chunk[k] + between(0, 3000000);
    }
    if (one_in(3) && c->n_chunks > 2) /* several tokens in a chunk */
        c->n_chunks = c->n_chunks / 2 + 1;
    c->reasoning = tokens > 4 ? tokens / 4 : 0;
    c->blocks = (uint32_t)(c->in / 64);
    c->hit_blocks = (uint32_t)between(0, c->blocks);
    c->hit_tokens = 64u * c->hit_blocks;
    if (one_in(2)) {
        c->has_cached = true;
        c->cached = (uint64_t)between(0, (int64_t)c->in);
    }
    if (c->phase == PHASE_PROFILING)
        spoil(c);
}

static void samples(struct run *r) {
    r->n_samples = r->sample_room = 5;
    r->samples = calloc(5, sizeof *r->samples);
    r->metrics_adapter = strdup("vllm");
    for (int i = 0; i < 5; i++) {
        struct server_sample *x = &r->samples[i];
        server_sample_clear(x);
        x->at = 1760000000000000000 + i * 20000000000ll;
        x->prompt_tokens = 1000 + 50000.0 * i;
        x->generated_tokens = 400.0 * i;
        x->requests_done = 12.0 * i;
        x->hit_tokens = 100 + 31000.0 * i + floor(unit() * 100);
        x->query_tokens = 1000 + 50000.0 * i;
        x->kv_usage = unit();
        x->kv_total_tokens = 123456;
        x->external_hit_tokens = 11.0 * i;
        x->bytes_out = 1e9 * i;
        x->seconds_out = 0.1 * i;
        x->running = between(0, 8);
        x->power_watts = 700 + 100 * unit();
        if (i == 4)
            x->requests_done = 3; /* began anew */
    }
}

void invent_run(struct run *out, uint64_t seed, uint32_t n) {
    state = rng_mix(seed);
    *out = (struct run){.concurrency = 4, .time_scale = 1, .length_scale = 1};
    out->subject = (struct run_subject){.tp = one_in(2) ? 8 : 0, .pp = one_in(2) ? 2 : 1};
    out->subject.hardware = strdup("h200");
    out->subject.model = strdup("tiny-k3");
    out->subject.framework = strdup("weir");
    out->subject.allocated_dram_gb = one_in(2) ? NAN : 224.875;
    out->scenario = strdup("agentic-coding");
    out->dataset = strdup("invented");
    out->config = json_pack("{s:i, s:s, s:f}", "concurrency", 4, "trace", "x.jsonl", "share", 0.1);
    out->started = 1759999990000000000;
    out->profiling_started = 1760000000000000000;
    out->profiling_ended = 1760000095000000000;
    out->ended = 1760000099000000000;
    for (uint32_t i = 0; i < n; i++)
        one_call(out, i);
    if (one_in(2))
        samples(out);
    if (!run_warn(out, "warning number %d", 1))
        abort();
}
