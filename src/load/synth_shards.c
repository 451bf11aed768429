/* synth_shards.c: lays the weights out in shards, then lets a team fill them block by block. Called
 * by synth.c. Invariant that bites: where a block lies and what it holds follow from the plan
 * alone, so that the number of threads and their order cannot show in the files. */
#include "load/synth_shards.h"
#include "base/arena.h"
#include "base/cpu.h"
#include "base/file.h"
#include "base/team.h"
#include "load/check.h"
#include "load/synth_values.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK_BYTES = 4 << 20 }; /* of stored data per unit of work */
static const uint64_t default_shard_bytes = 4900000000u;

/* One weight and where its data lies; an MXFP4 weight has its scales right behind its codes. */
struct piece {
    struct weight_spec spec;
    uint32_t shard;
    uint64_t offset;     /* within the shard's data area */
    uint32_t block_rows; /* rows of one unit of work */
    uint64_t first_block;
};

struct plan {
    struct piece *piece;
    size_t n, capacity;
    uint64_t shard_limit, shard_bytes /* so far, of the last shard */, total_bytes, blocks;
    uint32_t shards;
};

static uint64_t code_bytes(const struct weight_spec *w) {
    return w->dtype == DTYPE_MXFP4 ? (uint64_t)w->rows * w->cols / 2 : w->bytes;
}

static weir_status plan_one(void *arg, const struct weight_spec *w) {
    struct plan *p = arg;
    if (p->n == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 256;
        struct piece *grown = realloc(p->piece, size_mul(capacity, sizeof *grown));
        if (!grown)
            return WEIR_NO_MEMORY;
        p->piece = grown;
        p->capacity = capacity;
    }
    if (p->shards == 0 || (p->shard_bytes > 0 && p->shard_bytes + w->bytes > p->shard_limit)) {
        p->shards++;
        p->shard_bytes = 0;
    }
    const uint64_t row = w->bytes / w->rows;
    const uint64_t rows = row >= BLOCK_BYTES ? 1 : BLOCK_BYTES / row;
    const uint32_t block_rows = rows < w->rows ? (uint32_t)rows : w->rows;
    p->piece[p->n++] = (struct piece){*w, p->shards - 1, p->shard_bytes, block_rows, p->blocks};
    p->blocks += (w->rows + block_rows - 1) / block_rows;
    p->shard_bytes += w->bytes;
    p->total_bytes += w->bytes;
    return WEIR_OK;
}

/* What the members share while they fill the shards. */
struct filling {
    const struct model *m;
    const struct plan *plan;
    const struct synth_options *o;
    const int *fd;
    const uint64_t *data_at;
    struct team *team;
    unsigned char **buffer;
    _Atomic uint64_t next_block, done_bytes;
    _Atomic int failure; /* errno of the first write that failed */
    uint64_t shown;      /* member 0: done_bytes at the last call of progress */
};

static int write_at(int fd, const unsigned char *data, uint64_t n, uint64_t at) {
    while (n > 0) {
        const ssize_t k = pwrite(fd, data, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? errno : EIO;
        data += k;
        at += (uint64_t)k;
        n -= (uint64_t)k;
    }
    return 0;
}

static const struct piece *piece_of(const struct plan *p, uint64_t block) {
    size_t lo = 0, hi = p->n;
    while (hi - lo > 1) {
        const size_t mid = lo + (hi - lo) / 2;
        if (p->piece[mid].first_block <= block)
            lo = mid;
        else
            hi = mid;
    }
    return &p->piece[lo];
}

static int fill_block(struct filling *f, uint64_t block, unsigned char *buffer) {
    const struct piece *p = piece_of(f->plan, block);
    const struct weight_spec *w = &p->spec;
    const uint32_t row0 = (uint32_t)(block - p->first_block) * p->block_rows;
    const uint32_t rows = w->rows - row0 < p->block_rows ? w->rows - row0 : p->block_rows;
    const uint64_t codes = code_bytes(w) / w->rows, scales = (w->bytes - code_bytes(w)) / w->rows;
    unsigned char *scale = buffer + codes * rows;
    synth_fill(f->m, w, f->o->seed, row0, rows, buffer, scale);
    const uint64_t at = f->data_at[p->shard] + p->offset;
    int e = write_at(f->fd[p->shard], buffer, codes * rows, at + codes * row0);
    if (e == 0 && scales)
        e = write_at(f->fd[p->shard], scale, scales * rows, at + code_bytes(w) + scales * row0);
    atomic_fetch_add(&f->done_bytes, (codes + scales) * rows);
    return e;
}

static void fill_member(void *arg, uint32_t member) {
    struct filling *f = arg;
    while (f->failure == 0) {
        const uint64_t block = atomic_fetch_add(&f->next_block, 1);
        if (block >= f->plan->blocks)
            return;
        const int e = fill_block(f, block, f->buffer[member]);
        int none = 0;
        if (e)
            atomic_compare_exchange_strong(&f->failure, &none, e);
        if (member == 0 && f->o->progress &&
            f->done_bytes - f->shown > f->plan->total_bytes / 200) {
            f->shown = f->done_bytes;
            f->o->progress(f->o->progress_arg, f->shown, f->plan->total_bytes);
        }
    }
}

static json_t *entry(const char *dtype, uint64_t rows, uint64_t cols, bool vector, uint64_t at,
                     uint64_t bytes) {
    json_t *shape = vector ? json_pack("[I]", (json_int_t)cols)
                           : json_pack("[I, I]", (json_int_t)rows, (json_int_t)cols);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                     (json_int_t)at, (json_int_t)(at + bytes));
}

/* The dimensions the released files give to what is a plain vector or table here. */
static json_t *plain_entry(const struct model *m, const struct piece *p) {
    const struct weight_spec *w = &p->spec;
    const char *dtype = w->dtype == DTYPE_F32 ? "F32" : "BF16";
    const bool conv = w->role == ROLE_Q_CONV || w->role == ROLE_K_CONV || w->role == ROLE_V_CONV;
    const bool proj = w->role == ROLE_ATTN_RES_PROJ || w->role == ROLE_FFN_RES_PROJ ||
                      w->role == ROLE_FINAL_RES_PROJ;
    json_t *e = entry(dtype, w->rows, w->cols, role_is_widened(w->role) && !conv && !proj,
                      p->offset, w->bytes);
    if (conv)
        json_object_set_new(e, "shape",
                            json_pack("[I, i, I]", (json_int_t)w->rows, 1, (json_int_t)w->cols));
    if (w->role == ROLE_A_LOG && m->family == FAMILY_KIMI_LINEAR)
        json_object_set_new(e, "shape", json_pack("[i, i, I, i]", 1, 1, (json_int_t)w->cols, 1));
    return e;
}

/* Adds the tensors of one shard to its header and to the index. */
static void describe(const struct model *m, const struct plan *p, uint32_t shard, const char *file,
                     json_t *header, json_t *map) {
    for (size_t i = 0; i < p->n; i++) {
        const struct weight_spec *w = &p->piece[i].spec;
        char name[sizeof w->name + 8];
        if (p->piece[i].shard != shard)
            continue;
        if (w->dtype != DTYPE_MXFP4) {
            json_object_set_new(header, w->name, plain_entry(m, &p->piece[i]));
            json_object_set_new(map, w->name, json_string(file));
            continue;
        }
        const uint64_t codes = code_bytes(w), at = p->piece[i].offset;
        snprintf(name, sizeof name, "%s_packed", w->name);
        json_object_set_new(header, name, entry("U8", w->rows, w->cols / 2, false, at, codes));
        json_object_set_new(map, name, json_string(file));
        snprintf(name, sizeof name, "%s_scale", w->name);
        json_object_set_new(
            header, name, entry("U8", w->rows, w->cols / 32, false, at + codes, w->bytes - codes));
        json_object_set_new(map, name, json_string(file));
    }
}

/* Creates one shard with its header; *data_at is where its data begin. */
static weir_status create_shard(const struct model *m, const struct plan *p, const char *dir,
                                uint32_t shard, json_t *map, int *fd, uint64_t *data_at,
                                weir_error *err) {
    char file[64];
    snprintf(file, sizeof file, "model-%05" PRIu32 "-of-%06" PRIu32 ".safetensors", shard + 1,
             p->shards);
    json_t *header = json_object();
    json_object_set_new(header, "__metadata__", json_pack("{s:s}", "format", "pt"));
    describe(m, p, shard, file, header, map);
    char *text = json_dumps(header, JSON_COMPACT), *path = file_join(dir, file);
    json_decref(header);
    weir_status s = WEIR_OK;
    if (!text || !path) {
        s = weir_fail(err, WEIR_NO_MEMORY, file, "no memory for its header");
        goto done;
    }
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (*fd < 0) {
        s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be created: %s", strerror(errno));
        goto done;
    }
    /* spaces up to a multiple of 64, so that the mapped weights start on a cache line */
    const size_t used = strlen(text), padded = (used + 8 + 63) / 64 * 64 - 8;
    unsigned char *head = malloc(8 + padded);
    if (!head) {
        s = weir_fail(err, WEIR_NO_MEMORY, file, "no memory for its header");
        goto done;
    }
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    memset(head + 8, ' ', padded);
    memcpy(head + 8, text, used);
    const int e = write_at(*fd, head, 8 + padded, 0);
    free(head);
    if (e)
        s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(e));
    *data_at = 8 + padded;
done:
    free(text);
    free(path);
    return s;
}

static weir_status write_index(const char *dir, json_t *map, uint64_t total, weir_error *err) {
    char *path = file_join(dir, "model.safetensors.index.json");
    json_t *index =
        json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    weir_status s = WEIR_OK;
    if (!path || !index)
        s = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory for its index");
    else if (json_dump_file(index, path, JSON_INDENT(1)) != 0)
        s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
    json_decref(index);
    free(path);
    return s;
}

static weir_status check_space(const char *dir, uint64_t need, weir_error *err) {
    struct statvfs v;
    if (statvfs(dir, &v) != 0)
        return WEIR_OK; /* not known: writing will tell */
    const uint64_t left = (uint64_t)v.f_bavail * v.f_frsize;
    if (need <= left)
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_FILE, dir,
                     "the checkpoint needs %" PRIu64 " bytes, its disk has %" PRIu64 " left", need,
                     left);
}

/* Fills all shards; the largest block sets the size of the members' buffers. */
static weir_status fill(struct filling *f, const char *dir, weir_error *err) {
    uint64_t largest = 0;
    for (size_t i = 0; i < f->plan->n; i++) {
        const struct piece *p = &f->plan->piece[i];
        const uint64_t bytes = p->spec.bytes / p->spec.rows * p->block_rows;
        largest = bytes > largest ? bytes : largest;
    }
    const uint32_t threads = f->o->threads ? f->o->threads : cpu_count();
    struct arena arena;
    f->buffer = calloc(threads, sizeof *f->buffer);
    f->team = team_open(threads);
    if (!f->buffer || !f->team || arena_open(&arena, threads * arena_piece(largest)) != 0) {
        free(f->buffer);
        team_close(f->team);
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory for %" PRIu32 " writers", threads);
    }
    for (uint32_t t = 0; t < threads; t++)
        f->buffer[t] = arena_take(&arena, largest);
    team_run(f->team, fill_member, f);
    team_close(f->team);
    arena_close(&arena);
    free(f->buffer);
    if (f->failure)
        return weir_fail(err, WEIR_BAD_FILE, dir, "a shard cannot be written: %s",
                         strerror(f->failure));
    if (f->o->progress)
        f->o->progress(f->o->progress_arg, f->plan->total_bytes, f->plan->total_bytes);
    return WEIR_OK;
}

weir_status synth_shards(const struct model *m, const struct synth_options *o,
                         struct synth_result *result, weir_error *err) {
    struct plan plan = {.shard_limit = o->shard_bytes ? o->shard_bytes : default_shard_bytes};
    weir_status s = model_each_weight(m, plan_one, &plan);
    int *fd = malloc((plan.shards ? plan.shards : 1) * sizeof *fd);
    uint64_t *data_at = calloc(plan.shards ? plan.shards : 1, sizeof *data_at);
    json_t *map = json_object();
    if (s || !fd || !data_at || !map)
        s = weir_fail(err, WEIR_NO_MEMORY, o->out, "no memory for the plan of its weights");
    uint32_t open_shards = 0;
    if (s == WEIR_OK)
        s = check_space(o->out, plan.total_bytes, err);
    while (s == WEIR_OK && open_shards < plan.shards) {
        fd[open_shards] = -1;
        s = create_shard(m, &plan, o->out, open_shards, map, &fd[open_shards],
                         &data_at[open_shards], err);
        open_shards++;
    }
    struct filling f = {.m = m, .plan = &plan, .o = o, .fd = fd, .data_at = data_at};
    if (s == WEIR_OK)
        s = fill(&f, o->out, err);
    for (uint32_t i = 0; i < open_shards; i++)
        if (fd[i] >= 0 && close(fd[i]) != 0 && s == WEIR_OK)
            s = weir_fail(err, WEIR_BAD_FILE, o->out, "a shard cannot be written: %s",
                          strerror(errno));
    if (s == WEIR_OK)
        s = write_index(o->out, map, plan.total_bytes, err);
    if (s == WEIR_OK) {
        result->bytes = plan.total_bytes;
        result->shards = plan.shards;
    }
    json_decref(map);
    free(plan.piece);
    free(fd);
    free(data_at);
    return s;
}
