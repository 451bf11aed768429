/* test_gpu_engine.c: an engine over a device that the emulator stands for: answers that resume from
 * the device's pools, from host memory and from disk are those computed anew. */
#include "tests/engine/real.h"
#include "tests/ops/gpu/emulated.h"

#include <time.h>

#if defined(__SANITIZE_ADDRESS__)
enum { TIERS = 1 };
#else
enum { TIERS = 2 };
#endif
enum { PROMPTS = 3, PROMPT = 70, ANSWER = 3 };

struct answer {
    int32_t ids[ANSWER];
    uint32_t n;
};

static void prompt_of(uint32_t which, int32_t *ids) {
    for (uint32_t i = 0; i < PROMPT; i++)
        ids[i] = (int32_t)((which * 37 + i * (which + 5)) % 150);
}

static struct answer ask(weir_engine *e, uint32_t which) {
    int32_t ids[PROMPT];
    struct answer a = {{0}, 0};
    weir_params p = weir_params_default();
    weir_request *r;
    weir_error err;
    p.temperature = 0;
    p.max_tokens = ANSWER;
    p.ignore_eos = true;
    prompt_of(which, ids);
    if (weir_submit(e, ids, PROMPT, &p, NULL, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    weir_progress progress = {0};
    const double end = weir_now() + 250;
    do {
        weir_token t[ANSWER];
        size_t n = weir_poll(r, t, ANSWER - a.n, &progress);
        for (size_t i = 0; i < n; i++)
            a.ids[a.n++] = t[i].id;
        if (weir_now() > end)
            fail_msg("prompt %u: no answer", which);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    } while (progress.finish == WEIR_RUNNING);
    assert_int_equal(progress.finish, WEIR_FINISH_LENGTH);
    assert_int_equal(a.n, ANSWER);
    weir_release(r);
    return a;
}

static weir_options options_of(int vendor) {
    weir_options o = weir_options_default();
    o.device = emulated_vendor(vendor) == GPU_CUDA ? WEIR_DEVICE_CUDA : WEIR_DEVICE_HIP;
    o.device_library = emulated_file(vendor);
    o.device_modules = emulated_modules;
    o.max_model_len = 128;
    o.max_num_seqs = 1;
    o.max_num_batched_tokens = 64; /* so that rows behind a page are a step of their own, resumed
                                      or not: in one with others they are rounded otherwise */
    o.threads = 1;
    return o;
}

/* Pools for one prompt and little more: others push it out. The tier asked for gives it back. */
static void answers_from_tiers_below_a_device_are_those_computed_anew(void **state) {
    char dir[] = "/tmp/weir_device_tier_XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (int tier = 0; tier < TIERS; tier++) {
        weir_options o = options_of(tier); /* one vendor each */
        o.max_checkpoints = 1;
        o.kv_cache_bytes = 96 << 10;
        if (tier == 0)
            o.cpu_offload_bytes = 8 << 20;
        else
            o.disk_offload_dir = dir, o.disk_offload_bytes = 8 << 20;
        weir_engine *e = open_engine("models/micro-kimi-linear", &o);
        struct answer first[PROMPTS];
        for (uint32_t i = 0; i < PROMPTS; i++)
            first[i] = ask(e, i);
        weir_stats s;
        for (uint32_t i = 0; i < PROMPTS; i++) {
            struct answer again = ask(e, i);
            assert_memory_equal(again.ids, first[i].ids, sizeof again.ids);
        }
        weir_get_stats(e, &s);
        const struct weir_tier_stats *t = &s.tier[tier == 0 ? WEIR_HOST : WEIR_DISK];
        printf("%s: %llu loads, %llu stores\n", tier == 0 ? "host" : "disk",
               (unsigned long long)t->loads[0], (unsigned long long)t->stores[0]);
        assert_true(t->loads[0] > 0 && t->stores[0] > 0);
        assert_int_equal(t->damaged, 0);
        weir_close(e);
    }
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_from_tiers_below_a_device_are_those_computed_anew),
    };
    return cmocka_run_group_tests(tests, emulated_begin, emulated_end);
}
