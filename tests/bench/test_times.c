/* The client's clock: what it says of a server agrees with what that server wrote down itself.
 * The truth is the mock's own record of when it sent each piece, so that a machine that is slow in
 * running the mock is not blamed on the client. */
#include "tests/bench/rig.h"

#include "trace/distribution.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#define BOUND_MS 1.0

/* Whatever else runs on the machine makes times longer, and nothing makes a client that is wrong
 * right by chance: it has so many goes to be within its bounds once. On a machine that disturbed
 * every one of them, as a clock beside the client and the mock itself saw, what that clock was late
 * by is taken off, and the client is held to the same bound over the rest. */
enum { GOES = 8 };

/* Sanitizers make client and mock several times slower; nobody measures with them. Then times are
 * shown and everything else is judged. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define JUDGES_TIMES false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define JUDGES_TIMES false
#endif
#endif
#ifndef JUDGES_TIMES
#define JUDGES_TIMES true
#endif

enum metric { TTFT, TTST, ITL, LATENCY, FULL_LATENCY, ICL, METRICS };
static const char *const metric_names[METRICS] = {"ttft",    "ttst",         "itl",
                                                  "latency", "full latency", "icl"};

struct both {
    struct values said[METRICS], truth[METRICS];
    struct values stamp_us; /* of each piece: the client's stamp less the time before the write */
    struct values mock_us;  /* of each piece: written behind its plan */
    struct values start_us; /* of each call: the mock's sight of the first byte less the start */
};

static double ms(int64_t ns) {
    return (double)ns * 1e-6;
}

/* A clock that does nothing but wake every millisecond on the client's processors: how late it
 * wakes is the machine's doing and not the client's. */
struct control {
    pthread_t thread;
    _Atomic bool stop;
    struct values late_us;
};

/* What one run suffered. The clock may have woken on another processor than the one that the client
 * had to wait for, so the kernel is asked too. */
struct disturbance {
    double clock_us;  /* the clock's lateness, 90th percentile */
    double waited_us; /* the client's thread could run and had no processor: mean of its turns */
    double stolen;    /* share of the processors' time that a hypervisor kept */
};

struct kernel_says {
    unsigned long long ran, waited, turns; /* of this thread; ns, ns */
    unsigned long long all, stolen;        /* of all processors; ticks */
};

/* Zeros where the kernel does not say. */
static struct kernel_says ask_kernel(void) {
    struct kernel_says k = {0};
    unsigned long long t[8] = {0};
    FILE *f = fopen("/proc/thread-self/schedstat", "r");
    if (f) {
        if (fscanf(f, "%llu %llu %llu", &k.ran, &k.waited, &k.turns) != 3)
            k = (struct kernel_says){0};
        fclose(f);
    }
    f = fopen("/proc/stat", "r");
    if (f) {
        if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]) == 8)
            for (int i = 0; i < 8; i++)
                k.all += t[i];
        k.stolen = t[7];
        fclose(f);
    }
    return k;
}

static void *control_main(void *arg) {
    struct control *c = arg;
    struct timespec at, now;
    clock_gettime(CLOCK_MONOTONIC, &at);
    while (!atomic_load(&c->stop)) {
        at.tv_nsec += 1000000;
        at.tv_sec += at.tv_nsec / 1000000000;
        at.tv_nsec %= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
        values_add(&c->late_us, (double)(now.tv_sec - at.tv_sec) * 1e6 +
                                    (double)(now.tv_nsec - at.tv_nsec) * 1e-3);
    }
    return NULL;
}

static struct disturbance run_controlled(struct rig *rig) {
    struct control c = {0};
    struct distribution late;
    struct kernel_says before = ask_kernel(), after;
    assert_int_equal(pthread_create(&c.thread, NULL, control_main, &c), 0);
    rig_run(rig);
    after = ask_kernel();
    atomic_store(&c.stop, true);
    pthread_join(c.thread, NULL);
    distribution_of(&c.late_us, &late);
    values_free(&c.late_us);
    struct disturbance d = {.clock_us = late.p90};
    if (after.turns > before.turns)
        d.waited_us =
            (double)(after.waited - before.waited) * 1e-3 / (double)(after.turns - before.turns);
    if (after.all > before.all)
        d.stolen = (double)(after.stolen - before.stolen) / (double)(after.all - before.all);
    print_message(
        "  a clock beside the client woke late by p50 %.1f p90 %.1f us; the client waited "
        "%.1f us a turn; %.1f %% stolen\n",
        late.p50, late.p90, d.waited_us, 100 * d.stolen);
    return d;
}

/* Late wakings, or waits for a processor, of a quarter of the bound, or a twentieth of the
 * processors taken away: nobody could have kept it. */
static bool was_disturbed(struct disturbance d, const struct distribution *mock_us) {
    return d.clock_us > BOUND_MS * 250 || d.waited_us > BOUND_MS * 250 || d.stolen > 0.05 ||
           mock_us->p90 > BOUND_MS * 250;
}

/* What the mock did, as the client should have seen it. */
static void add_truth(struct both *b, const struct mock_request *r) {
    uint32_t n = r->n_pieces;
    double ttft = ms(r->piece[0].before - r->first_byte);
    double latency = ms(r->piece[n - 1].before - r->first_byte);
    values_add(&b->truth[TTFT], ttft);
    values_add(&b->truth[LATENCY], latency);
    values_add(&b->truth[FULL_LATENCY], latency);
    for (uint32_t i = 0; i < n; i++)
        values_add(&b->mock_us, (double)(r->piece[i].before - r->piece[i].planned) * 1e-3);
    if (n < 2)
        return;
    values_add(&b->truth[TTST], ms(r->piece[1].before - r->piece[0].before));
    for (uint32_t i = 1; i < n; i++)
        values_add(&b->truth[ICL], ms(r->piece[i].before - r->piece[i - 1].before));
}

static void add_said(struct both *b, const struct rig *rig, const struct call_record *c,
                     const struct mock_request *r) {
    struct call_metrics m;
    call_metrics_of(c, &m);
    values_add(&b->said[TTFT], m.ttft * 1e3);
    values_add(&b->said[TTST], m.ttst * 1e3);
    values_add(&b->said[ITL], m.itl * 1e3);
    values_add(&b->said[LATENCY], m.latency * 1e3);
    values_add(&b->said[FULL_LATENCY], m.full_latency * 1e3);
    double truth = (double)(r->piece[r->n_pieces - 1].before - r->piece[0].before) * 1e-6;
    values_add(&b->truth[ITL], c->out > 1 ? truth / (double)(c->out - 1) : NAN);
    for (uint32_t i = 1; i < c->n_chunks; i++)
        values_add(&b->said[ICL], ms(c->chunk[i] - c->chunk[i - 1]));
    values_add(&b->start_us, (double)(r->first_byte + rig->unix_offset - c->start) * 1e-3);
    for (uint32_t i = 0; i < c->n_chunks && i < r->n_pieces; i++)
        values_add(&b->stamp_us,
                   (double)(c->chunk[i] - rig->unix_offset - r->piece[i].before) * 1e-3);
}

/* Without the calls of the first moments, where every lane begins at once: how long one waits for
 * another in the mock's single thread is the server's time, and the mock's own record begins behind
 * it. */
static void compare(struct rig *rig, struct both *b, int64_t first_moments) {
    int64_t begin = INT64_MAX;
    memset(b, 0, sizeof *b);
    for (uint32_t i = 0; i < rig->run.n_records; i++)
        begin = rig->run.records[i].start < begin ? rig->run.records[i].start : begin;
    for (uint32_t i = 0; i < rig->run.n_records; i++) {
        const struct call_record *c = &rig->run.records[i];
        const struct mock_request *r = rig_request(rig, c);
        if (!call_record_counts(c) || c->start < begin + first_moments)
            continue;
        assert_non_null(r);
        assert_int_equal(c->n_chunks, r->n_pieces);
        add_truth(b, r);
        add_said(b, rig, c, r);
    }
}

static void free_both(struct both *b) {
    for (int m = 0; m < METRICS; m++) {
        values_free(&b->said[m]);
        values_free(&b->truth[m]);
    }
    values_free(&b->stamp_us);
    values_free(&b->mock_us);
    values_free(&b->start_us);
}

static void show(const char *name, struct values *v) {
    struct distribution d;
    distribution_of(v, &d);
    print_message("  %-34s p50 %8.1f  p90 %8.1f  p99 %8.1f  max %8.1f us\n", name, d.p50, d.p90,
                  d.p99, d.max);
}

static void show_overhead(const struct rig *rig, struct both *b) {
    const struct client_overhead *o = &rig->run.overhead;
    show("mock: written behind its plan", &b->mock_us);
    show("start to the mock's sight of it", &b->start_us);
    show("write to the client's stamp", &b->stamp_us);
    print_message("  client: %.1f %% of a core, %u streams, turns p50 %.1f p99 %.1f max %.1f us, "
                  "late sending p50 %.1f p99 %.1f us\n",
                  o->busy * 100, o->most_streams, o->turn_us.p50, o->turn_us.p99, o->turn_us.max,
                  o->late_us.p50, o->late_us.p99);
}

/* Median and 90th percentile of each metric; the largest difference, and whose it is. */
static double worst_difference(struct both *b, const char **whose) {
    double worst = 0;
    for (int m = 0; m < METRICS; m++) {
        struct distribution said, truth;
        distribution_of(&b->said[m], &said);
        distribution_of(&b->truth[m], &truth);
        assert_int_equal(said.n, truth.n);
        print_message("  %-13s said p50 %9.3f p90 %9.3f  truth p50 %9.3f p90 %9.3f ms\n",
                      metric_names[m], said.p50, said.p90, truth.p50, truth.p90);
        const double off = fmax(fabs(said.p50 - truth.p50), fabs(said.p90 - truth.p90));
        *whose = off > worst ? metric_names[m] : *whose;
        worst = fmax(worst, off);
    }
    return worst;
}

static void latencies_are_within_a_millisecond_of_the_truth_at_64_lanes(void **state) {
    static const char mock[] = "--ttft-us 50000 --itl-us 10000";
    struct rig rig;
    rig_start(&rig, mock);
    rig_random(&rig, 64, 256, 300, 50, 0.5);
    bool disturbed = true; /* every time */
    double least_own = INFINITY;
    for (int go = 0;; go++) {
        struct both b;
        struct distribution mock_us;
        const char *whose = "nothing";
        struct disturbance d = run_controlled(&rig);
        assert_int_equal(rig.summary.kept, 256);
        compare(&rig, &b, 50000000); /* no answer has begun by then */
        assert_true(b.said[TTFT].n >= 128);
        double worst = worst_difference(&b, &whose);
        show_overhead(&rig, &b);
        struct distribution start_us, stamp_us;
        distribution_of(&b.mock_us, &mock_us);
        distribution_of(&b.start_us, &start_us);
        distribution_of(&b.stamp_us, &stamp_us);
        free_both(&b);
        if (worst <= BOUND_MS || !JUDGES_TIMES)
            break;
        disturbed &= was_disturbed(d, &mock_us);
        least_own = fmin(least_own, worst - (fmax(d.clock_us, d.waited_us) + mock_us.p90) * 1e-3);
        if (go == GOES - 1) {
            if (!disturbed || least_own > BOUND_MS)
                fail_msg("%s off by %.3f ms; the bound is %.1f ms; p90: start %.0f, stamp %.0f, "
                         "mock %.0f, clock %.0f us; waited %.0f us a turn; %.1f %% stolen",
                         whose, worst, BOUND_MS, start_us.p90, stamp_us.p90, mock_us.p90,
                         d.clock_us, d.waited_us, 100 * d.stolen);
            print_message(
                "THE MACHINE IS TOO BUSY: without what a clock was late by the client was "
                "off by %.3f ms\n",
                least_own);
            break;
        }
        print_message("%s: the client's %s was off by %.3f ms, the mock late by %.3f ms (p99); "
                      "once more\n",
                      was_disturbed(d, &mock_us) ? "DISTURBED" : "OFF", whose, worst,
                      mock_us.p99 * 1e-3);
        rig_again(&rig, mock);
    }
    rig_free(&rig);
}

/* What was stamped before it can have been there. */
struct early {
    uint32_t out_of_order, before_write, pieces;
    int64_t most; /* ns before the write */
};

static struct early look_for_early(struct rig *rig) {
    const int64_t slack = 100000; /* two readings of Unix time against the monotonic clock */
    struct early e = {0};
    for (uint32_t i = 0; i < rig->run.n_records; i++) {
        const struct call_record *c = &rig->run.records[i];
        const struct mock_request *r = rig_request(rig, c);
        assert_true(c->n_chunks > 0);
        e.out_of_order +=
            c->ack < c->start || c->chunk[0] < c->ack || c->end < c->chunk[c->n_chunks - 1];
        for (uint32_t n = 1; n < c->n_chunks; n++)
            e.out_of_order += c->chunk[n] < c->chunk[n - 1];
        for (uint32_t n = 0; n < c->n_chunks && n < r->n_pieces; n++) {
            int64_t ahead = r->piece[n].before - (c->chunk[n] - rig->unix_offset);
            e.before_write += ahead > slack;
            e.pieces++;
            e.most = ahead > e.most ? ahead : e.most;
        }
    }
    return e;
}

/* Is one run with the answers of `mock` stamped as it was? Bursts are as long as the client takes
 * to read them, so their median is not judged. */
static bool stamps_are_possible(struct rig *rig, const char *mock, bool is_burst, bool *disturbed) {
    struct both b;
    struct distribution said, truth, mock_us;
    struct disturbance d = run_controlled(rig);
    assert_int_equal(rig->summary.kept, 400);
    assert_int_equal(rig->summary.ttft.n, rig->summary.kept);
    struct early e = look_for_early(rig);
    compare(rig, &b, 0);
    distribution_of(&b.said[TTFT], &said);
    distribution_of(&b.truth[TTFT], &truth);
    print_message(
        "  %s: %u out of order, %u of %u before the write (by up to %.3f ms); TTFT said %.3f "
        "mean %.3f p50, truth %.3f mean %.3f p50 ms\n",
        mock, e.out_of_order, e.before_write, e.pieces, ms(e.most), said.mean, said.p50, truth.mean,
        truth.p50);
    show_overhead(rig, &b);
    distribution_of(&b.mock_us, &mock_us);
    free_both(&b);
    *disturbed = was_disturbed(d, &mock_us);
    assert_int_equal(e.out_of_order, 0);
    /* A thread that is put aside between a look and the stamp it is for may do so once. The way
     * through the kernel and what else runs here only make TTFT longer. */
    bool early = e.before_write > 2 || ms(e.most) > BOUND_MS;
    return !JUDGES_TIMES || (!early && said.mean > truth.mean - 0.1 &&
                             (is_burst || fabs(said.p50 - truth.p50) < BOUND_MS));
}

/* On connections that are used again, with a server so fast that its answer is there while the
 * client still sends: nothing is seen before the request left, nor before the server wrote it. */
static void nothing_is_stamped_before_it_was_there(void **state) {
    static const char *const mocks[] = {"--ttft-us 1000 --itl-us 200", "--ttft-us 0 --itl-us 0",
                                        "--ttft-us 1000 --itl-us 0"};
    for (size_t k = 0; k < sizeof mocks / sizeof *mocks; k++) {
        struct rig rig;
        int go = 0;
        bool now, disturbed = true;
        rig_start(&rig, mocks[k]);
        rig_random(&rig, 8, 400, 2000, 8, 0.9);
        for (; !stamps_are_possible(&rig, mocks[k], k > 0, &now) && go < GOES; go++) {
            disturbed &= now;
            rig_again(&rig, mocks[k]);
        }
        rig_free(&rig);
        if (go == GOES && disturbed)
            print_message("THE MACHINE IS TOO BUSY to tell how long answers of %s took\n",
                          mocks[k]);
        assert_true(go < GOES || disturbed);
    }
}

/* Several tokens in one piece make the gaps between pieces longer, and leave ITL what it is. */
static void tokens_that_share_a_piece_do_not_change_itl(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 20000 --itl-us 4000 --chunk 4");
    rig_random(&rig, 4, 16, 200, 41, 0);
    struct disturbance d = run_controlled(&rig);
    assert_int_equal(rig.summary.kept, 16);
    for (uint32_t i = 0; i < rig.run.n_records; i++) {
        const struct call_record *c = &rig.run.records[i];
        assert_int_equal(c->out, 41);
        assert_int_equal(c->out_source, COUNT_USAGE);
        assert_int_equal(c->n_chunks, 11);
    }
    /* 10 gaps of 16 ms over 40 tokens. */
    bool right = fabs(rig.summary.itl.p50 * 1e3 - 4) < 0.25 &&
                 fabs(rig.summary.icl.p50 * 1e3 - 16) < BOUND_MS;
    rig_free(&rig);
    const bool disturbed = was_disturbed(d, &(struct distribution){0});
    if (!right && disturbed)
        print_message("THE MACHINE IS TOO BUSY: a clock woke late by %.1f us\n", d.clock_us);
    assert_true(right || !JUDGES_TIMES || disturbed);
}

/* From before the mock's write to the client's stamp: the write itself and the way through the
 * kernel are in it. The tail belongs to the machine and is shown, not judged. */
static void five_hundred_streams_are_stamped_truly(void **state) {
    static const char mock[] = "--ttft-us 300000 --itl-us 50000";
    struct distribution stamps, mock_us;
    struct rig rig;
    rig_start(&rig, mock);
    rig_random(&rig, 512, 1024, 64, 40, 0.5);
    bool disturbed = true; /* every time */
    for (int go = 0;; go++) {
        struct both b;
        const char *whose = "nothing";
        struct disturbance d = run_controlled(&rig);
        assert_int_equal(rig.summary.kept, 1024);
        assert_int_equal(rig.run.overhead.most_streams, 512);
        compare(&rig, &b, 0);
        worst_difference(&b, &whose);
        show_overhead(&rig, &b);
        distribution_of(&b.stamp_us, &stamps);
        distribution_of(&b.mock_us, &mock_us);
        free_both(&b);
        disturbed &= was_disturbed(d, &mock_us);
        if (!JUDGES_TIMES || stamps.p50 < 100 || go == 2)
            break;
        rig_again(&rig, mock);
    }
    if (!JUDGES_TIMES) {
        print_message("times are not judged with sanitizers\n");
    } else if (stamps.p50 >= 100) {
        print_message("THE MACHINE IS TOO BUSY for a bound of 100 us: stamps %.1f us, the mock "
                      "itself late by %.1f us (medians); only 1 ms was asked for\n",
                      stamps.p50, mock_us.p50);
        assert_true(disturbed || (mock_us.p50 >= 50 && stamps.p50 < 1000));
    }
    rig_free(&rig);
}

#define CALL(T, IN, THINK, IDS)                                                                    \
    "{\"t\":" #T ",\"type\":\"s\",\"in\":" #IN ",\"out\":5,\"api_time\":0.1,\"think_time\":" THINK \
    ",\"hash_ids\":[" IDS "]}"
static const char turns[] =
    "{\"id\":\"a\",\"requests\":[" CALL(0, 130, "0", "1,2") "," CALL(1, 200, "0.05", "1,2,3") "," CALL(
        2, 260, "0.12",
        "1,2,3,4") "," CALL(3, 330, "0.08",
                            "1,2,3,4,5") "]}\n"
                                         "{\"id\":\"b\",\"requests\":[" CALL(
                                             0, 130, "0",
                                             "1,2") "," CALL(1, 200, "0.03",
                                                             "1,2,3") "," CALL(2, 260, "0.07",
                                                                               "1,2,3,6") "]}\n";

/* A call is due at the end of the one before plus the recorded wait, exactly; and it is sent then,
 * as exactly as a machine can. */
static void planned_times_are_kept(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 5000 --itl-us 1000");
    rig_weka(&rig, turns, 8, 2);
    rig.options.lanes.warmup_calls = 1;
    struct disturbance dist = run_controlled(&rig);
    uint32_t checked = 0;
    struct values late = {0};
    for (uint32_t i = 0; i < rig.run.n_records; i++) {
        const struct call_record *c = &rig.run.records[i];
        assert_string_equal(c->error_type, "");
        if (!call_record_counts(c) || c->turn == 0)
            continue;
        values_add(&late, (double)(c->start - c->due) * 1e-3);
        for (uint32_t k = 0; k < rig.run.n_records; k++) {
            const struct call_record *p = &rig.run.records[k];
            if (p->play != c->play || p->turn + 1 != c->turn || p->phase != PHASE_PROFILING)
                continue;
            int64_t wait = rig.trace.requests[c->request].think_time;
            assert_int_equal(c->due - p->end, wait);
            checked++;
        }
    }
    struct distribution d;
    distribution_of(&late, &d);
    print_message("  %u calls were due as planned and sent late by p50 %.1f p90 %.1f max %.1f us\n",
                  checked, d.p50, d.p90, d.max);
    assert_true(checked > 50);
    assert_true(d.min >= 0);
    values_free(&late);
    rig_free(&rig);
    assert_true(d.p50 < 1000 + dist.clock_us || !JUDGES_TIMES);
}

static int by_value(const void *a, const void *z) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)z;
    return (x > y) - (x < y);
}

/* Within a play prefixes are shared as recorded; between plays not one block is. */
static void no_two_plays_share_a_block(void **state) {
    struct rig rig;
    rig_start(&rig, "--ttft-us 1000 --itl-us 100");
    rig_weka(&rig, turns, 4, 1.5);
    rig.options.lanes.warmup_calls = 1;
    rig_run(&rig);
    struct {
        uint64_t hash, play;
    } *all = NULL;
    size_t n = 0;
    for (uint32_t i = 0; i < rig.run.n_records; i++) {
        const struct call_record *c = &rig.run.records[i];
        const struct mock_request *r = rig_request(&rig, c);
        const struct trace_request *q = &rig.trace.requests[c->request];
        assert_non_null(r);
        assert_int_equal(r->n_blocks, q->in / 64);
        all = realloc(all, (n + r->n_blocks) * sizeof *all);
        for (uint32_t k = 0; k < r->n_blocks; k++) {
            all[n].hash = r->block[k];
            all[n++].play = c->play;
        }
        for (uint32_t j = 0; j < i; j++) {
            const struct call_record *o = &rig.run.records[j];
            const struct mock_request *x = rig_request(&rig, o);
            const struct trace_request *p = &rig.trace.requests[o->request];
            if (o->play != c->play)
                continue;
            for (uint32_t k = 0; k < q->n_blocks && k < p->n_blocks; k++)
                assert_true((q->hash_ids[k] == p->hash_ids[k]) == (r->block[k] == x->block[k]));
        }
    }
    qsort(all, n, sizeof *all, by_value);
    uint32_t plays = 0;
    for (size_t i = 1; i < n; i++) {
        plays = all[i].play > plays ? (uint32_t)all[i].play : plays;
        if (all[i].hash == all[i - 1].hash)
            assert_int_equal(all[i].play, all[i - 1].play);
    }
    assert_true(plays > 8);
    free(all);
    rig_free(&rig);
}

int main(void) {
    /* Before others where that is allowed: the bounds are about the client and not about whatever
     * else runs on this machine. The mock inherits it. */
    if (setpriority(PRIO_PROCESS, 0, -10) != 0)
        puts("not allowed to run before others");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latencies_are_within_a_millisecond_of_the_truth_at_64_lanes),
        cmocka_unit_test(nothing_is_stamped_before_it_was_there),
        cmocka_unit_test(tokens_that_share_a_piece_do_not_change_itl),
        cmocka_unit_test(five_hundred_streams_are_stamped_truly),
        cmocka_unit_test(planned_times_are_kept),
        cmocka_unit_test(no_two_plays_share_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
