/* runner.c: see runner.h. */
#include "forward/runner.h"

#include "base/arena.h"
#include "base/plural.h"
#include "base/rng.h"
#include "ops/gpu/driver.h"

struct runner {
    struct model m;
    struct arena arena;
    struct kv_pool kv;
    struct state_pool state;
    size_t kv_bytes, state_bytes;
    struct gpu_device *device; /* NULL: the pools are in `arena` */
    uint64_t device_pools[2];
    struct step_program *program;
    struct team *team;
    uint32_t sequences, positions, rows, max_logits;
    uint32_t *length;
    int32_t *pages; /* [sequences][pages per sequence] */
    uint32_t pages_each;
    int32_t *ids;
    struct batch_seq *seqs;
    struct batch_logits *logits;
    bool failed;
    weir_error failure;
};

static weir_status take_device_pools(struct runner *r, size_t kv_bytes, size_t state_bytes,
                                     weir_error *err) {
    weir_status st = gpu_memory_take(r->device, kv_bytes ? kv_bytes : 1, &r->device_pools[0], err);
    if (!st)
        st = gpu_memory_take(r->device, state_bytes ? state_bytes : 1, &r->device_pools[1], err);
    r->kv.data = (unsigned char *)(uintptr_t)r->device_pools[0];
    r->state.data = (float *)(uintptr_t)r->device_pools[1];
    return st;
}

static weir_status take_pools(struct runner *r, const struct runner_options *o, weir_error *err) {
    r->pages_each = (o->positions + PAGE_TOKENS - 1) / PAGE_TOKENS;
    size_t page_bytes = program_kv_page_bytes(&r->m, o->kv_dtype);
    size_t slot_floats = program_state_slot_floats(&r->m);
    size_t n_pages = (size_t)r->pages_each * o->sequences;
    size_t kv_bytes = size_mul(n_pages, page_bytes);
    size_t state_bytes = size_mul(size_mul(o->sequences, slot_floats), sizeof(float));
    size_t small = arena_piece(o->sequences * sizeof(uint32_t)) +
                   arena_piece(n_pages * sizeof(int32_t)) + arena_piece(o->rows * sizeof(int32_t)) +
                   arena_piece(o->sequences * sizeof(struct batch_seq)) +
                   arena_piece(o->logits * sizeof(struct batch_logits));
    size_t total, here = o->device ? 0 : kv_bytes, here_too = o->device ? 0 : state_bytes;
    if (__builtin_add_overflow(here, here_too, &total) ||
        __builtin_add_overflow(total, small + 256, &total) || arena_open(&r->arena, total) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "runner",
                         "no memory for %u sequences of %u positions", o->sequences, o->positions);
    r->length = arena_take(&r->arena, o->sequences * sizeof *r->length);
    r->pages = arena_take(&r->arena, n_pages * sizeof *r->pages);
    r->ids = arena_take(&r->arena, o->rows * sizeof *r->ids);
    r->seqs = arena_take(&r->arena, o->sequences * sizeof *r->seqs);
    r->logits = arena_take(&r->arena, o->logits * sizeof *r->logits);
    r->kv = (struct kv_pool){.data = o->device ? NULL : arena_take(&r->arena, kv_bytes),
                             .dtype = o->kv_dtype,
                             .page_bytes = page_bytes,
                             .width = r->m.kv_lora + r->m.rope_dim};
    r->state = (struct state_pool){.data = o->device ? NULL : arena_take(&r->arena, state_bytes),
                                   .slot_floats = slot_floats,
                                   .layer_floats = program_state_layer_floats(&r->m)};
    r->kv_bytes = kv_bytes;
    r->state_bytes = state_bytes;
    for (size_t i = 0; i < n_pages; i++)
        r->pages[i] = (int32_t)i;
    return o->device ? take_device_pools(r, kv_bytes, state_bytes, err) : WEIR_OK;
}

weir_status runner_open(const struct model *m, const struct weights *w,
                        const struct runner_options *o, struct runner **out, weir_error *err) {
    *out = NULL;
    struct runner *r = calloc(1, sizeof *r);
    if (!r)
        return weir_fail(err, WEIR_NO_MEMORY, "runner", "no memory");
    r->m = *m;
    r->sequences = o->sequences;
    r->positions = o->positions;
    r->rows = o->rows;
    r->max_logits = o->logits;
    r->device = o->device;
    weir_status s = take_pools(r, o, err);
    if (!s)
        s = program_build(&r->m, w, o->column, &r->kv, &r->state,
                          (struct step_limits){o->rows, o->logits, o->positions, o->sequences},
                          o->threads, &r->program, err);
    if (!s && o->device)
        s = program_to_device(r->program, o->device, err);
    if (!s && o->tuning)
        s = program_tune(r->program, o->tuning, err);
    if (!s && !(r->team = team_open(o->threads)))
        s = weir_fail(err, WEIR_NO_MEMORY, "runner", "cannot start %u %s", o->threads,
                      plural(o->threads, "thread", "threads"));
    if (s) {
        runner_close(r);
        return s;
    }
    *out = r;
    return WEIR_OK;
}

void runner_close(struct runner *r) {
    if (!r)
        return;
    team_close(r->team);
    program_free(r->program);
    for (int i = 0; i < 2 && r->device; i++)
        gpu_memory_free(r->device, r->device_pools[i]);
    arena_close(&r->arena);
    free(r);
}

static uint32_t place(struct runner *r, struct batch *b, const struct runner_feed *f) {
    WEIR_ASSERT(f->sequence < r->sequences && b->n_rows + f->n <= r->rows);
    uint32_t *length = &r->length[f->sequence];
    WEIR_ASSERT(f->n > 0 && *length + f->n <= r->positions);
    r->seqs[b->n_seqs++] = (struct batch_seq){
        .row0 = b->n_rows,
        .rows = f->n,
        .pos0 = *length,
        .pages = r->pages + (size_t)f->sequence * r->pages_each,
        .slot = (int32_t)f->sequence,
        .from = *length ? (int32_t)f->sequence : -1,
    };
    uint32_t first = f->all_logits ? 0 : f->n - 1;
    for (uint32_t i = 0; i < f->n; i++) {
        r->ids[b->n_rows + i] = f->ids[i];
        if (i >= first) {
            WEIR_ASSERT(b->n_logits < r->max_logits);
            r->logits[b->n_logits++] =
                (struct batch_logits){.row = b->n_rows + i, .target = f->ids[i], .n_top = -1};
        }
    }
    b->n_rows += f->n;
    *length += f->n;
    return f->n;
}

static struct batch place_all(struct runner *r, const struct runner_feed *feeds, uint32_t n) {
    struct batch b = {.ids = r->ids, .seqs = r->seqs, .logits = r->logits};
    for (uint32_t i = 0; i < n; i++)
        if (feeds[i].n == 1)
            b.n_decode += place(r, &b, &feeds[i]);
    for (uint32_t i = 0; i < n; i++)
        if (feeds[i].n > 1)
            place(r, &b, &feeds[i]);
    return b;
}

uint32_t runner_step(struct runner *r, const struct runner_feed *feeds, uint32_t n) {
    const struct batch b = place_all(r, feeds, n);
    program_run(r->program, r->team, &b);
    if (!r->failed)
        r->failed = program_failure(r->program, &r->failure) != WEIR_OK;
    return b.n_logits;
}

const float *runner_prefill(struct runner *r, uint32_t sequence, const int32_t *ids, uint32_t n,
                            uint32_t chunk) {
    for (uint32_t done = 0; done < n;) {
        uint32_t now = n - done < chunk ? n - done : chunk;
        runner_step(r, &(struct runner_feed){sequence, ids + done, now, false}, 1);
        done += now;
    }
    return runner_logits(r, 0);
}

const float *runner_logits(const struct runner *r, uint32_t i) {
    return program_logits(r->program, i);
}

weir_status runner_failure(const struct runner *r, weir_error *err) {
    return r->failed ? weir_fail(err, r->failure.code, r->failure.where, "%s", r->failure.message)
                     : WEIR_OK;
}

void runner_reset(struct runner *r, uint32_t sequence) {
    r->length[sequence] = 0;
}

/* 16-bit pieces that are small numbers as BF16, as halves of f32 and as bytes of E4M3. */
enum { INVENTED_BYTES = 1 << 20 };

static void invent_here(uint8_t *to, size_t bytes) {
    for (size_t i = 0; i + 2 <= bytes; i += 2) {
        uint64_t dice = rng_at(1, 3, i / 2);
        to[i] = (uint8_t)(dice % 0x70);
        to[i + 1] = (uint8_t)(0x3c | (dice >> 32 & 0x82));
    }
}

/* One piece from here, and from there on what is there already. */
static weir_status invent_there(struct gpu_device *d, uint64_t to, size_t bytes,
                                const uint8_t *piece, weir_error *err) {
    size_t done = bytes < INVENTED_BYTES ? bytes : INVENTED_BYTES;
    weir_status st = gpu_copy_in(d, to, piece, done, err);
    while (done < bytes && !st) {
        size_t n = bytes - done < done ? bytes - done : done;
        st = gpu_copy_on(d, to + done, to, n, err);
        done += n;
    }
    return st ? st : gpu_wait(d, err);
}

weir_status runner_invent(struct runner *r, uint32_t positions, weir_error *err) {
    WEIR_ASSERT(positions <= r->positions);
    for (uint32_t i = 0; i < r->sequences; i++)
        r->length[i] = positions;
    if (!r->device) {
        invent_here(r->kv.data, r->kv_bytes);
        invent_here((uint8_t *)r->state.data, r->state_bytes);
        return WEIR_OK;
    }
    uint8_t *piece = malloc(INVENTED_BYTES);
    if (!piece)
        return weir_fail(err, WEIR_NO_MEMORY, "runner", "no memory for a history");
    invent_here(piece, INVENTED_BYTES);
    weir_status st = gpu_device_enter(r->device, err);
    if (!st)
        st = invent_there(r->device, r->device_pools[0], r->kv_bytes, piece, err);
    if (!st)
        st = invent_there(r->device, r->device_pools[1], r->state_bytes, piece, err);
    free(piece);
    return st;
}

weir_status runner_time(struct runner *r, const struct runner_feed *feeds, uint32_t n,
                        const struct device_timing *t, double *us, weir_error *err) {
    const struct batch b = place_all(r, feeds, n);
    weir_status st = program_time(r->program, &b, t, us, err);
    for (uint32_t i = 0; i < n; i++)
        r->length[feeds[i].sequence] -= feeds[i].n;
    return st;
}

uint32_t runner_length(const struct runner *r, uint32_t sequence) {
    return r->length[sequence];
}

const float *runner_state(const struct runner *r, uint32_t sequence, uint32_t kda_layer) {
    return r->state.data + sequence * r->state.slot_floats + kda_layer * r->state.layer_floats;
}

const float *runner_window(const struct runner *r, uint32_t sequence, uint32_t kda_layer) {
    return runner_state(r, sequence, kda_layer) + (size_t)model_kda_width(&r->m) * r->m.kda_dim;
}

struct step_program *runner_program(struct runner *r) {
    return r->program;
}
