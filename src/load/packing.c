/* packing.c: weights in the layouts of the column that will read them. Called once, behind
 * weights_open. Invariant that bites: a matrix that is also read as stored (embedding rows, and the
 * absorbed halves of kv_b) must keep its stored form; `data` therefore stays valid for all. */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "base/team.h"
#include "load/weights_inside.h"
#include "ops/gpu/pack.h"
#include "ops/pack.h"

#include <sys/mman.h>

/* One pass over all matrices: the first adds up, the second gives places. */
struct packer {
    struct weights *w;
    bool marking; /* only says which form a matrix is to have */
    const struct column *column;
    enum dense_form dense;
    size_t bytes;
    struct weight **list; /* NULL: adding up */
    size_t n;
};

/* The router is not among them: it stays stored, and so meets f32 activations. An expert chosen
 * otherwise costs more accuracy than rounding all other activations to BF16 does. */
static bool is_product(enum role role) {
    switch (role) {
    case ROLE_HEAD:
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_F_A:
    case ROLE_F_B:
    case ROLE_B:
    case ROLE_G:
    case ROLE_G_A:
    case ROLE_G_B:
    case ROLE_O:
    case ROLE_Q_A:
    case ROLE_Q_B:
    case ROLE_KV_A:
    case ROLE_GATE_UP_GATE:
    case ROLE_GATE_UP_UP:
    case ROLE_DOWN:
    case ROLE_LATENT_DOWN:
    case ROLE_LATENT_UP: return true;
    default: return false;
    }
}

/* Tokens are not chosen from quantised weights. */
static enum dense_form dense_of(const struct packer *p, enum role role) {
    return role == ROLE_HEAD ? DENSE_BF16 : p->dense;
}

static void visit(struct packer *p, struct weight *w, enum dense_form dense) {
    if (!w->data || w->packing != PACK_NONE)
        return;
    enum packing packing = p->column->packing(w, dense);
    if (p->marking) {
        w->packing = packing;
        return;
    }
    size_t bytes = packing == PACK_NONE ? 0 : pack_bytes(w, packing);
    if (bytes == 0)
        return;
    p->bytes += arena_piece(bytes);
    if (p->list) {
        w->packing = packing;
        p->list[p->n] = w;
    }
    p->n++;
}

static void visit_all(struct packer *p) {
    const struct model *m = &p->w->model;
    p->bytes = p->n = 0;
    for (size_t l = 0; l <= m->layers; l++)
        for (int role = 0; role < ROLE_EXPERT_W1; role++)
            if (is_product((enum role)role))
                visit(p, &p->w->whole[l * ROLE_COUNT + (size_t)role], dense_of(p, (enum role)role));
    if (m->tied_head) /* the embedding is the head as well */
        visit(p, &p->w->whole[(size_t)m->layers * ROLE_COUNT + ROLE_EMBED], DENSE_BF16);
    for (size_t i = 0; i < (size_t)m->layers * 3 * m->experts; i++)
        visit(p, &p->w->expert[i], p->dense);
}

/* The mapped pages of what has been copied may go; reading them again only costs time. */
static void let_go(const void *data, size_t bytes) {
    uintptr_t from = ((uintptr_t)data + 4095) & ~(uintptr_t)4095;
    uintptr_t to = ((uintptr_t)data + bytes) & ~(uintptr_t)4095;
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

struct job {
    struct packer *p;
    struct team *team;
    uint32_t members;
};

static void pack_member(void *arg, uint32_t member) {
    struct job *j = arg;
    for (size_t i = 0; i < j->p->n; i++) {
        struct weight *w = j->p->list[i];
        pack_weight(w, w->packing, (void *)(uintptr_t)w->packed,
                    (struct work){.index = member, .count = j->members});
    }
}

static weir_status pack_list(struct packer *p, struct team *team, weir_error *err) {
    if (arena_open(&p->w->packed, p->bytes) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "weights",
                         "no memory for %zu bytes in the layout of column %s", p->bytes,
                         p->column->name);
    for (size_t i = 0; i < p->n; i++)
        p->list[i]->packed = arena_take(&p->w->packed, pack_bytes(p->list[i], p->list[i]->packing));
    struct job j = {p, team, team_threads(team)};
    team_run(team, pack_member, &j);
    for (size_t i = 0; i < p->n; i++) {
        const struct weight *w = p->list[i];
        size_t values = (size_t)w->rows * w->cols;
        let_go(w->data, w->dtype == DTYPE_MXFP4 ? values / 2 : values * 2);
    }
    return WEIR_OK;
}

uint64_t weights_device_bytes(const struct weights *w) {
    uint64_t bytes = w->bytes;
    for (size_t i = 0; i < (size_t)(w->model.layers + 1) * ROLE_COUNT; i++)
        if (w->whole[i].packing == PACK_FP8)
            bytes -= (uint64_t)w->whole[i].rows * w->whole[i].cols * 2 -
                     gpu_pack_fp8_bytes(&w->whole[i]);
    return bytes;
}

/* Pools fill while a server runs, hours after it has started: an operator should hear at once. */
static void warn_of_little_room(const struct packer *p, uint64_t other_bytes) {
    uint64_t memory = memory_limit(), packed = p->bytes;
    if (packed <= memory && other_bytes <= memory - packed)
        return;
    log_line(
        LOG_WARN,
        "memory: %.1f GB of weights in the layout of column %s and %.1f GB of pools and caches "
        "(kv_cache_bytes, expert_cache_bytes, cpu_offload_bytes) are more than the %.1f GB of "
        "this machine",
        (double)packed * 1e-9, p->column->name, (double)other_bytes * 1e-9, (double)memory * 1e-9);
}

weir_status weights_pack(struct weights *w, const struct column *column, enum dense_form dense,
                         uint64_t other_bytes, uint32_t threads, weir_error *err) {
    struct packer p = {.w = w, .column = column, .dense = dense};
    if (!column->packing || w->packed.base)
        return WEIR_OK;
    p.marking = column->device;
    visit_all(&p);
    if (p.n == 0)
        return WEIR_OK;
    if (p.bytes > memory_limit() / 100 * 85) {
        log_line(LOG_WARN,
                 "weights: %zu bytes in the layout of column %s do not fit into memory; they are "
                 "used as stored, which is slower%s",
                 p.bytes, column->name, dense == DENSE_BF16 ? "" : ", and are not quantised");
        return WEIR_OK;
    }
    warn_of_little_room(&p, other_bytes);
    double start = clock_seconds();
    struct team *team = team_open(threads);
    p.list = calloc(p.n, sizeof *p.list);
    weir_status s = WEIR_OK;
    if (!team || !p.list)
        s = weir_fail(err, WEIR_NO_MEMORY, "weights", "no memory to pack %zu matrices", p.n);
    if (!s) {
        visit_all(&p);
        s = pack_list(&p, team, err);
    }
    if (!s && p.bytes > 1u << 30)
        log_line(LOG_INFO, "weights: %.1f GB packed for column %s in %.1f s",
                 (double)p.bytes * 1e-9, column->name, clock_seconds() - start);
    free(p.list);
    team_close(team);
    return s;
}
