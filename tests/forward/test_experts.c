/* Experts that are read when they are chosen: the same bits as with all of them in memory, whatever
 * the size of the cache, the column, the team and the way of reading; and failures that end a step
 * and nothing else. */
#include "rig.h"

#include "base/cpu.h"
#include "base/rng.h"
#include "load/synth.h"
#include "tests/load/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *const models[] = {"models/micro-k3-odd", "models/micro-kimi-linear",
                                     "models/tiny-k3"};
enum { SEQS = 3, PROMPT = 60, STEPS = 4, MOST_ROWS = 64 };

static struct runner_options options_of(const struct column *column, uint32_t threads) {
    return (struct runner_options){.column = column,
                                   .threads = threads,
                                   .sequences = SEQS,
                                   .positions = 128,
                                   .rows = MOST_ROWS,
                                   .logits = MOST_ROWS,
                                   .kv_dtype = DTYPE_F32};
}
static struct runner_options options(bool fast, uint32_t threads) {
    return options_of(fast ? column_fast(ACTIVATION_DEFAULT) : &column_ref, threads);
}

/* Experts are laid out as the column wants them wherever they are. */
static void open_dir(struct rig *g, const char *dir, const struct runner_options *o,
                     const struct expert_setup *setup) {
    weir_error err;
    struct expert_setup s = setup ? *setup : (struct expert_setup){0};
    s.column = o->column;
    if (model_open(dir, &g->m, &err) ||
        weights_open_reading(dir, &g->m, setup ? &s : NULL, &g->w, &err) ||
        weights_pack(g->w, o->column, s.dense, 0, 1, &err) ||
        runner_open(&g->m, g->w, o, &g->r, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static void keep(struct rig *g, uint32_t n, float **out) {
    for (uint32_t i = 0; i < n; i++, *out += g->m.vocab)
        memcpy(*out, runner_logits(g->r, i), g->m.vocab * sizeof **out);
}

enum { KEPT = PROMPT + SEQS * STEPS };

/* A prompt that chooses nearly all experts, then decoding of several sequences at once. */
static void work(struct rig *g, uint32_t seed, float *out) {
    int32_t ids[PROMPT];
    rig_ids(ids, PROMPT, g->m.vocab, seed);
    for (uint32_t s = 0; s < SEQS; s++)
        runner_reset(g->r, s);
    keep(g, runner_step(g->r, &(struct runner_feed){0, ids, PROMPT, true}, 1), &out);
    for (uint32_t t = 0; t < STEPS; t++) {
        struct runner_feed feed[SEQS];
        for (uint32_t s = 0; s < SEQS; s++)
            feed[s] = (struct runner_feed){s, &ids[(7 * t + s) % PROMPT], 1, false};
        keep(g, runner_step(g->r, feed, SEQS), &out);
    }
}

/* What two matrices of the largest kind take, and packing them, as the refusal says. */
static uint64_t least_bytes(const char *dir, const struct column *column, enum dense_form dense) {
    struct model m;
    struct weights *w;
    weir_error err;
    const struct expert_setup one = {.bytes = 1, .members = 1, .column = column, .dense = dense};
    assert_int_equal(model_open(dir, &m, &err), WEIR_OK);
    assert_int_equal(weights_open_reading(dir, &m, &one, &w, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "expert_cache_bytes");
    const char *number = strrchr(err.message, ' ');
    assert_non_null(number);
    uint64_t least = strtoull(number, NULL, 10);
    const struct expert_setup less = {
        .bytes = least - 1, .members = 1, .column = column, .dense = dense};
    assert_int_equal(weights_open_reading(dir, &m, &less, &w, &err), WEIR_BAD_VALUE);
    return least;
}

static void compare(const char *model, const struct column *column,
                    const struct expert_setup *setup, uint32_t seed, const float *want) {
    struct rig g;
    weir_error err;
    weir_expert_stats s;
    const struct runner_options o = options_of(column, setup->members);
    open_dir(&g, source_path(model), &o, setup);
    size_t floats = (size_t)KEPT * g.m.vocab;
    float *got = malloc(floats * sizeof *got);
    work(&g, seed, got);
    assert_int_equal(runner_failure(g.r, &err), WEIR_OK);
    if (memcmp(want, got, floats * sizeof *got) != 0)
        fail_msg("%s, %s, dense %d, %u threads, %llu bytes, way %d, seed %u: other bits", model,
                 column->name, setup->dense, setup->members, (unsigned long long)setup->bytes,
                 setup->way, seed);
    weights_count_experts(g.w, &s);
    assert_true(s.open && s.misses > 0 && s.reads > 0 && s.read_bytes > 0);
    assert_true(s.bytes_used <= s.bytes_total && s.bytes_total <= setup->bytes);
    assert_int_equal(s.read_errors, 0);
    free(got);
    rig_close(&g);
}

/* One model on one column: in memory, then in caches from the least over a few units to more than
 * there are. */
static void any_cache(size_t model, const struct column *column, enum dense_form dense,
                      uint32_t rounds) {
    struct rig g;
    char whole[4096];
    weir_error err;
    const struct runner_options o = options_of(column, 1);
    snprintf(whole, sizeof whole, "%s", source_path(models[model]));
    uint64_t least = least_bytes(whole, column, dense);
    if (model_open(whole, &g.m, &err) || weights_open(whole, &g.m, &g.w, &err) ||
        weights_pack(g.w, column, dense, 0, 1, &err) || runner_open(&g.m, g.w, &o, &g.r, &err))
        fail_msg("%s: %s", err.where, err.message);
    float *want = malloc((size_t)KEPT * g.m.vocab * sizeof *want);
    work(&g, 1, want);
    rig_close(&g);
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t dice = rng_at(9, model, round * 2 + (column != &column_ref));
        uint64_t more = round < 2 ? round * least / 2 : dice % (least << (dice >> 60));
        const struct expert_setup setup = {.bytes = least + more,
                                           .members = 1 + round % 3,
                                           .way = dice >> 32 & 1 ? EXPERT_THREADS : EXPERT_AUTO,
                                           .guess = dice >> 33 & 1,
                                           .dense = dense};
        compare(models[model], column, &setup, 1, want);
    }
    free(want);
}

static void any_cache_gives_the_bits_of_experts_in_memory(void **state) {
    for (size_t i = 0; i < 3; i++) {
        any_cache(i, &column_ref, DENSE_BF16, RIG_SLOW ? 3 : 6);
        any_cache(i, column_fast(ACTIVATION_F32), DENSE_BF16, RIG_SLOW ? 3 : 6);
        any_cache(i, column_fast(ACTIVATION_BF16), DENSE_INT8, 2);
        any_cache(i, column_fast(ACTIVATION_INT8), DENSE_FP8, 2);
    }
}

/* Tensors that lie anywhere: a header of any length moves all of them. */
static void misaligned_experts_give_the_same_bits(void **state) {
    for (size_t i = 0; i < 2; i++)
        for (int extra = 1; extra <= 3; extra += 2) {
            struct scratch s = scratch_copy(models[i]);
            struct opened_shard shard = shard_read(&s, "model.safetensors");
            char *text = json_dumps(shard.header, JSON_COMPACT);
            assert_non_null(text);
            size_t n = strlen(text), room = n + 16;
            char *padded = malloc(room);
            assert_non_null(padded);
            snprintf(padded, room, "%s%*s", text, (int)(8 - n % 8) % 8 + extra, "");
            shard_write_text(&s, "model.safetensors", &shard, padded);
            free(text);
            free(padded);
            json_decref(shard.header);
            free(shard.file);
            struct rig a, b;
            const struct runner_options o = options(true, 2);
            const struct expert_setup setup = {.bytes = 1 << 20, .members = 2, .guess = true};
            char whole[4096];
            snprintf(whole, sizeof whole, "%s", source_path(models[i]));
            open_dir(&a, whole, &o, NULL);
            open_dir(&b, s.dir, &o, &setup);
            size_t bytes = (size_t)KEPT * a.m.vocab * sizeof(float);
            float *want = malloc(bytes), *got = malloc(bytes);
            work(&a, 3, want);
            work(&b, 3, got);
            assert_memory_equal(want, got, bytes);
            free(want);
            free(got);
            rig_close(&a);
            rig_close(&b);
            scratch_free(&s);
        }
}

/* ------------------------------------------------------------------------------------------------
 * failures */

struct fault {
    _Atomic int every, count; /* every so many-th read fails; 0: none does */
};

static int fault(void *arg, uint32_t layer, enum expert_part part, uint32_t expert) {
    struct fault *f = arg;
    int every = atomic_load(&f->every);
    return every && atomic_fetch_add(&f->count, 1) % every == every - 1 ? EIO : 0;
}

static void a_read_that_fails_fails_its_step_and_no_other(void **state) {
    for (int way = EXPERT_AUTO; way <= EXPERT_THREADS; way += EXPERT_THREADS)
        for (uint32_t threads = RIG_SLOW ? 3 : 1; threads <= 3; threads++) {
            struct rig g;
            struct fault f = {0};
            weir_error err = {0};
            weir_expert_stats s;
            const char *dir = source_path("models/tiny-k3");
            const struct expert_setup setup = {
                .bytes = 3 * least_bytes(dir, column_fast(ACTIVATION_DEFAULT), DENSE_BF16),
                .members = threads,
                .way = (enum expert_way)way,
                .guess = true,
                .fault = fault,
                .fault_arg = &f};
            const struct runner_options o = options(true, threads);
            open_dir(&g, dir, &o, &setup);
            size_t bytes = (size_t)KEPT * g.m.vocab * sizeof(float);
            float *want = malloc(bytes), *got = malloc(bytes);
            work(&g, 1, want);
            assert_int_equal(runner_failure(g.r, &err), WEIR_OK);
            for (int every = 1; every <= 4096; every *= RIG_SLOW ? 64 : 8) {
                atomic_store(&f.every, every);
                work(&g, 1, got);
                atomic_store(&f.every, 0);
                work(&g, 1, got); /* as if nothing had been */
                assert_memory_equal(want, got, bytes);
                assert_int_equal(program_failure(runner_program(g.r), &err), WEIR_OK);
            }
            assert_int_equal(runner_failure(g.r, &err), WEIR_BAD_FILE);
            assert_non_null(strstr(err.where, ".safetensors"));
            assert_non_null(strstr(err.message, ".experts."));
            assert_non_null(strstr(err.message, "cannot be read: Input/output error"));
            weights_count_experts(g.w, &s);
            assert_true(s.read_errors > 0);
            free(want);
            free(got);
            rig_close(&g);
        }
}

/* The first read of a step waits until `go` and fails, the one begun beside it fails at once and so
 * ends the step; all others are well. */
struct late_fault {
    _Atomic int armed, count, go;
};

static int late_fault(void *arg, uint32_t layer, enum expert_part part, uint32_t expert) {
    struct late_fault *f = arg;
    int at = atomic_load(&f->armed) ? atomic_fetch_add(&f->count, 1) : 2;
    while (at == 0 && !atomic_load(&f->go))
        usleep(1000);
    return at == 0 || (at == 1 && !atomic_load(&f->go)) ? EIO : 0;
}

static void *let_go(void *arg) {
    struct late_fault *f = arg;
    usleep(200000);
    atomic_store(&f->go, 1);
    return NULL;
}

/* In small caches: what is tried again must not wait for frames behind what waits for it. */
static void a_read_left_by_a_step_that_failed_does_not_fail_the_next(void **state) {
    for (uint64_t times = 2; times <= 4; times++)
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            struct rig g;
            struct late_fault f = {0};
            weir_error err = {0};
            const char *dir = source_path("models/tiny-k3");
            const struct expert_setup setup = {
                .bytes = times * least_bytes(dir, column_fast(ACTIVATION_DEFAULT), DENSE_BF16),
                .members = threads,
                .way = EXPERT_THREADS,
                .guess = true,
                .fault = late_fault,
                .fault_arg = &f};
            const struct runner_options o = options(true, threads);
            open_dir(&g, dir, &o, &setup);
            size_t bytes = (size_t)KEPT * g.m.vocab * sizeof(float);
            float *want = malloc(bytes), *got = malloc(bytes);
            int32_t ids[PROMPT];
            rig_ids(ids, PROMPT, g.m.vocab, 1);
            work(&g, 1, want);
            atomic_store(&f.armed, 1);
            pthread_t other;
            assert_int_equal(pthread_create(&other, NULL, let_go, &f), 0);
            runner_reset(g.r, 0);
            runner_step(g.r, &(struct runner_feed){0, ids, PROMPT, true}, 1);
            assert_int_equal(runner_failure(g.r, &err), WEIR_BAD_FILE);
            work(&g, 1, got);
            assert_memory_equal(want, got, bytes);
            assert_int_equal(program_failure(runner_program(g.r), &err), WEIR_OK);
            pthread_join(other, NULL);
            free(want);
            free(got);
            rig_close(&g);
        }
}

/* A small model in several shards, of which one holds experts alone. */
static struct scratch sharded(uint32_t experts, uint64_t shard_bytes) {
    struct scratch s = scratch_new();
    weir_error err;
    struct synth_result r;
    const struct synth_options o = {.preset = "tiny",
                                    .out = s.dir,
                                    .seed = 4,
                                    .layers = 3,
                                    .experts = experts,
                                    .threads = 1,
                                    .shard_bytes = shard_bytes};
    if (synth_write(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    return s;
}

static void a_shard_cut_short_while_running_is_named(void **state) {
    for (int way = EXPERT_AUTO; way <= EXPERT_THREADS; way += EXPERT_THREADS) {
        struct scratch s = sharded(24, 100000);
        char name[256], *file;
        size_t n;
        weir_error err = {0};
        struct rig g;
        const struct expert_setup setup = {
            .bytes = least_bytes(s.dir, column_fast(ACTIVATION_DEFAULT), DENSE_BF16),
            .members = 2,
            .way = (enum expert_way)way};
        const struct runner_options o = options(true, 2);
        shard_of_experts(&s, name, sizeof name);
        read_whole(scratch_path(&s, name), &file, &n);
        open_dir(&g, s.dir, &o, &setup);
        size_t bytes = (size_t)KEPT * g.m.vocab * sizeof(float);
        float *want = malloc(bytes), *got = malloc(bytes);
        work(&g, 1, want);
        assert_int_equal(runner_failure(g.r, &err), WEIR_OK);
        assert_int_equal(truncate(scratch_path(&s, name), (off_t)(n / 2)), 0);
        work(&g, 1, got);
        assert_int_equal(runner_failure(g.r, &err), WEIR_BAD_FILE);
        assert_string_equal(err.where, name);
        assert_non_null(strstr(err.message, ".experts."));
        char end[64];
        snprintf(end, sizeof end, "file ends at %zu", n / 2);
        assert_non_null(strstr(err.message, end));
        FILE *f = fopen(scratch_path(&s, name), "r+b");
        assert_int_equal(fwrite(file, 1, n, f), n);
        fclose(f);
        work(&g, 1, got);
        assert_memory_equal(want, got, bytes);
        free(want);
        free(got);
        free(file);
        rig_close(&g);
        scratch_free(&s);
    }
}

static void a_scale_that_means_nan_is_refused_when_loading(void **state) {
    struct scratch s = scratch_copy("models/micro-k3-odd");
    struct opened_shard o = shard_read(&s, "model.safetensors");
    const char *name;
    json_t *e;
    size_t at = 0;
    json_object_foreach(o.header, name, e) if (strstr(name, "experts.4.w2.weight_scale")) at =
        o.data_at +
        (size_t)json_integer_value(json_array_get(json_object_get(e, "data_offsets"), 1)) - 1;
    assert_true(at > 0);
    o.file[at] = (char)255;
    scratch_write(&s, "model.safetensors", o.file, o.file_bytes);
    json_decref(o.header);
    free(o.file);
    for (int way = EXPERT_AUTO; way <= EXPERT_THREADS; way += EXPERT_THREADS) {
        struct model m;
        struct weights *w;
        weir_error err;
        const struct expert_setup setup = {
            .bytes = 1 << 20, .members = 1, .way = (enum expert_way)way};
        assert_int_equal(model_open(s.dir, &m, &err), WEIR_OK);
        assert_int_equal(weights_open_reading(s.dir, &m, &setup, &w, &err), WEIR_BAD_FILE);
        assert_non_null(strstr(err.message, "experts.4.w2.weight_scale: the scale of row 31"));
        assert_non_null(strstr(err.message, "is the byte 255"));
    }
    scratch_free(&s);
}

/* ------------------------------------------------------------------------------------------------
 * memory */

static size_t resident_bytes(const char *path, bool drop) {
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    size_t n = (size_t)lseek(fd, 0, SEEK_END), pages = (n + 4095) / 4096, resident = 0;
    if (drop) {
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    void *map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *is = malloc(pages);
    assert_true(map != MAP_FAILED && mincore(map, n, is) == 0);
    for (size_t i = 0; i < pages; i++)
        resident += is[i] & 1;
    munmap(map, n);
    free(is);
    close(fd);
    return resident * 4096;
}

static void experts_leave_no_pages_in_the_page_cache(void **state) {
    for (int way = EXPERT_AUTO; way <= EXPERT_THREADS; way += EXPERT_THREADS) {
        struct scratch s = sharded(200, 1000000);
        char name[256];
        struct rig g;
        struct stat st;
        uint8_t print[WEIGHTS_FINGERPRINT_BYTES];
        const struct expert_setup setup = {
            .bytes = least_bytes(s.dir, column_fast(ACTIVATION_DEFAULT), DENSE_BF16),
            .members = 1,
            .way = (enum expert_way)way};
        const struct runner_options o = options(true, 1);
        shard_of_experts(&s, name, sizeof name);
        assert_int_equal(stat(scratch_path(&s, name), &st), 0);
        if (resident_bytes(scratch_path(&s, name), true) > 0)
            skip(); /* a file system in memory */
        open_dir(&g, s.dir, &o, &setup);
        weights_fingerprint(g.w, print);
        float *out = malloc((size_t)KEPT * g.m.vocab * sizeof *out);
        work(&g, 1, out);
        free(out);
        size_t resident = resident_bytes(scratch_path(&s, name), false);
        /* The header is read through the mapping, and the kernel reads on behind it. */
        if (resident > (size_t)st.st_size / 2)
            fail_msg("%zu of %zu bytes", resident, (size_t)st.st_size);
        rig_close(&g);
        scratch_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cache_gives_the_bits_of_experts_in_memory),
        cmocka_unit_test(misaligned_experts_give_the_same_bits),
        cmocka_unit_test(a_read_that_fails_fails_its_step_and_no_other),
        cmocka_unit_test(a_read_left_by_a_step_that_failed_does_not_fail_the_next),
        cmocka_unit_test(a_shard_cut_short_while_running_is_named),
        cmocka_unit_test(a_scale_that_means_nan_is_refused_when_loading),
        cmocka_unit_test(experts_leave_no_pages_in_the_page_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
