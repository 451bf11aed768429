/* An engine whose experts stay in their files: the same answers, figures that add up, options that
 * are checked, and a file that goes bad ends the requests of a step with its name and nothing more.
 */
#include "tests/engine/real.h"

#include "base/cpu.h"
#include "load/synth.h"
#include "tests/load/checkpoint.h"

#include <unistd.h>

enum { ANSWER = 12, ASKS = 3 };

struct answer {
    int32_t ids[ANSWER];
    float logprob[ANSWER][3]; /* of the id drawn and of the best two */
    size_t n;
    weir_progress end;
    weir_error why;
    weir_status failure;
};

static weir_options small(uint64_t bytes) {
    weir_options o = weir_options_default();
    o.threads = 2;
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 64;
    o.max_model_len = 256;
    o.kv_cache_bytes = 64 << 20;
    o.expert_cache_bytes = bytes;
    return o;
}

static weir_request *submit(weir_engine *e, int i) {
    int32_t prompt[100];
    weir_request *r;
    weir_error err;
    weir_params p = weir_params_default();
    p.temperature = 0;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    p.logprobs = 2;
    for (int k = 0; k < 100; k++)
        prompt[k] = (k * 37 + i * 11 + 5) % 500;
    assert_int_equal(weir_submit(e, prompt, (size_t)(20 + 40 * i), &p, NULL, &r, &err), WEIR_OK);
    return r;
}

static void await(weir_request *r, struct answer *a) {
    weir_token t[ANSWER];
    memset(a, 0, sizeof *a);
    do {
        size_t got = weir_poll(r, t, ANSWER - a->n, &a->end);
        for (size_t k = 0; k < got; k++) {
            const float seen[] = {t[k].logprob, t[k].top[0].logprob, t[k].top[1].logprob};
            memcpy(a->logprob[a->n], seen, sizeof seen);
            a->ids[a->n++] = t[k].id;
        }
        if (!got)
            usleep(1000);
    } while (a->end.finish == WEIR_RUNNING);
    a->failure = weir_failure(r, &a->why);
    weir_release(r);
}

static void ask_all(weir_engine *e, struct answer *a) {
    weir_request *r[ASKS];
    for (int i = 0; i < ASKS; i++)
        r[i] = submit(e, i);
    for (int i = 0; i < ASKS; i++)
        await(r[i], &a[i]);
}

/* Which rows share a step does not hang on time then, and fast columns give the same bits again. */
static void ask_in_turn(weir_engine *e, struct answer *a) {
    for (int i = 0; i < ASKS; i++)
        await(submit(e, i), &a[i]);
}

static void assert_equal(const struct answer *a, const struct answer *b) {
    for (int i = 0; i < ASKS; i++) {
        assert_int_equal(a[i].end.finish, WEIR_FINISH_LENGTH);
        assert_int_equal(a[i].failure, WEIR_OK);
        assert_int_equal(a[i].n, ANSWER);
        assert_memory_equal(a[i].ids, b[i].ids, sizeof a[i].ids);
    }
}

static weir_engine *open_at(const char *dir, const weir_options *o) {
    weir_engine *e;
    weir_error err;
    if (weir_open(dir, o, &e, &err))
        fail_msg("%s: %s", err.where, err.message);
    return e;
}

static void answers_and_fingerprint_are_those_of_experts_in_memory(void **state) {
    for (int compute = WEIR_COMPUTE_FAST; compute <= WEIR_COMPUTE_EXACT; compute++) {
        struct answer want[ASKS], got[ASKS];
        weir_info a, b;
        weir_stats s;
        weir_options o = small(0);
        o.compute = (enum weir_compute)compute;
        weir_engine *e = open_engine("models/tiny-k3", &o);
        ask_in_turn(e, want);
        weir_get_info(e, &a);
        weir_get_stats(e, &s);
        assert_false(s.experts.open);
        weir_close(e);
        o.expert_cache_bytes = 200000;
        e = open_engine("models/tiny-k3", &o);
        ask_in_turn(e, got);
        assert_equal(got, want);
        for (int i = 0; i < ASKS; i++)
            assert_memory_equal(got[i].logprob, want[i].logprob, sizeof got[i].logprob);
        weir_get_info(e, &b);
        weir_get_stats(e, &s);
        weir_close(e);
        assert_string_equal(a.fingerprint, b.fingerprint);
        assert_int_equal(a.weight_bytes, b.weight_bytes);
        const weir_expert_stats *x = &s.experts;
        assert_true(x->open && x->bytes_total <= 200000 && x->bytes_used <= x->bytes_total);
        assert_true(x->misses > 0 && x->reads > 0 && x->evictions > 0 && x->read_seconds > 0);
        assert_true(x->guesses >= x->guesses_right && x->ahead_reads >= x->ahead_used);
        assert_true(x->guesses_right > 0);
        assert_int_equal(x->read_errors, 0);
        assert_int_equal(s.failed_steps, 0);
    }
}

static void what_cannot_work_is_refused_in_one_line(void **state) {
    static const struct {
        uint64_t bytes;
        const char *says;
    } bad[] = {{1000, "less than two matrices of one expert and two more to pack them into take: "},
               {UINT64_MAX / 2, "bytes of this machine"}};
    for (size_t i = 0; i < 2; i++) {
        weir_engine *e;
        weir_error err;
        weir_options o = small(bad[i].bytes);
        char dir[4096];
        snprintf(dir, sizeof dir, "%s", source_path("models/tiny-k3"));
        assert_int_equal(weir_open(dir, &o, &e, &err), WEIR_BAD_VALUE);
        assert_string_equal(err.where, "expert_cache_bytes");
        assert_non_null(strstr(err.message, bad[i].says));
        assert_null(strchr(err.message, '\n'));
    }
}

static void a_file_that_goes_bad_ends_its_requests_and_the_engine_lives(void **state) {
    for (int async = 0; async < 2; async++) {
        struct scratch s = scratch_new();
        struct synth_result made;
        weir_error err;
        weir_stats stats;
        char name[256], *file;
        size_t n;
        struct answer want[ASKS], got[ASKS];
        const struct synth_options synth = {.preset = "tiny",
                                            .out = s.dir,
                                            .seed = 4,
                                            .layers = 4,
                                            .threads = 1,
                                            .shard_bytes = 100000};
        if (synth_write(&synth, &made, &err))
            fail_msg("%s: %s", err.where, err.message);
        shard_of_experts(&s, name, sizeof name);
        read_whole(scratch_path(&s, name), &file, &n);
        weir_options o = small(60000);
        o.async_scheduling = async;
        weir_engine *e = open_at(s.dir, &o);
        ask_all(e, want);
        assert_int_equal(truncate(scratch_path(&s, name), (off_t)(n / 4)), 0);
        ask_all(e, got);
        for (int i = 0; i < ASKS; i++) {
            assert_int_equal(got[i].end.finish, WEIR_FINISH_ERROR);
            assert_int_equal(got[i].end.error, WEIR_BAD_FILE);
            assert_int_equal(got[i].failure, WEIR_BAD_FILE);
            assert_string_equal(got[i].why.where, name);
            assert_non_null(strstr(got[i].why.message, ".experts."));
            /* What was answered before that is right. */
            assert_memory_equal(got[i].ids, want[i].ids, got[i].n * sizeof *want[i].ids);
        }
        FILE *f = fopen(scratch_path(&s, name), "r+b");
        assert_int_equal(fwrite(file, 1, n, f), n);
        fclose(f);
        /* Nothing of the failed steps is reused. */
        ask_all(e, got);
        assert_equal(got, want);
        stats = when_idle(e);
        assert_true(stats.failed_steps > 0 && stats.experts.read_errors > 0);
        assert_int_equal(stats.finished[WEIR_FINISH_ERROR], ASKS);
        weir_close(e);
        free(file);
        scratch_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_fingerprint_are_those_of_experts_in_memory),
        cmocka_unit_test(what_cannot_work_is_refused_in_one_line),
        cmocka_unit_test(a_file_that_goes_bad_ends_its_requests_and_the_engine_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
