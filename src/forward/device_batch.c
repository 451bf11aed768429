/* device_batch.c: see device_batch.h. Called by device.c for every step, on the thread that
 * runs it. */
#include "forward/device_batch.h"

#include "forward/device_draw.h"

#include <string.h>

static size_t piece(size_t *used, size_t bytes) {
    size_t at = *used;
    *used += (bytes + 15) & ~(size_t)15;
    return at;
}

static void lay_out(struct device_batch *d, uint32_t rows, uint32_t logits) {
    d->used = 0;
    d->ids = piece(&d->used, rows * sizeof(int32_t));
    d->gather = piece(&d->used, logits * sizeof(int32_t));
    d->kda = piece(&d->used, rows * sizeof(struct gpu_kda_seq));
    d->spans = piece(&d->used, rows * sizeof(struct gpu_kda_span));
    d->checkpoints = piece(&d->used, rows * sizeof(struct gpu_kda_checkpoint));
    d->mla = piece(&d->used, rows * sizeof(struct gpu_mla_seq));
    d->places = piece(&d->used, rows * sizeof(struct gpu_mla_place));
    d->draws = piece(&d->used, logits * sizeof(struct gpu_draw));
}

size_t device_batch_bytes(uint32_t rows, uint32_t logits) {
    struct device_batch d;
    lay_out(&d, rows, logits);
    return d.used;
}

bool device_expands(const struct device_batch *d, const struct batch *b, uint32_t s) {
    const struct batch_seq *q = &b->seqs[s];
    return d->expands && s >= b->n_decode && gpu_mla_expand(q->rows, q->pos0 + q->rows);
}

struct device_absorbed device_absorbed_begin(const struct batch *b, bool decode) {
    struct device_absorbed a = {.end = b->n_decode, .row = 0};
    if (!decode)
        a = (struct device_absorbed){.seq = b->n_decode, .end = b->n_seqs, .row = b->n_decode};
    return a;
}

bool device_absorbed_next(const struct device_batch *d, const struct batch *b,
                          struct device_absorbed *a) {
    uint32_t row = a->row + a->rows, seq = a->seq;
    while (seq < a->end &&
           (row >= b->seqs[seq].row0 + b->seqs[seq].rows || device_expands(d, b, seq))) {
        seq++;
        if (seq < a->end && row < b->seqs[seq].row0)
            row = b->seqs[seq].row0;
    }
    if (seq == a->end)
        return false;
    a->seq = seq;
    a->row = row;
    a->rows = 0;
    for (; seq < a->end && a->rows < DEVICE_ATTENTION_ROWS && !device_expands(d, b, seq); seq++)
        a->rows = b->seqs[seq].row0 + b->seqs[seq].rows - row;
    if (a->rows > DEVICE_ATTENTION_ROWS)
        a->rows = DEVICE_ATTENTION_ROWS;
    return true;
}

static void fill_kda(struct device_batch *d, const struct batch *b) {
    struct gpu_kda_seq *tokens = (struct gpu_kda_seq *)(void *)(d->host + d->kda);
    struct gpu_kda_span *spans = (struct gpu_kda_span *)(void *)(d->host + d->spans);
    struct gpu_kda_checkpoint *checkpoints =
        (struct gpu_kda_checkpoint *)(void *)(d->host + d->checkpoints);
    uint32_t n = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *q = &b->seqs[s];
        if (s < b->n_decode) { /* a checkpoint can only be of the one position it comes to */
            tokens[s] = (struct gpu_kda_seq){(int32_t)q->row0, q->from, q->slot,
                                             q->n_checkpoints ? q->checkpoints[0].slot : -1};
            continue;
        }
        spans[s - b->n_decode] =
            (struct gpu_kda_span){q->row0, q->rows, q->pos0, q->from, q->slot, n, q->n_checkpoints};
        for (uint32_t i = 0; i < q->n_checkpoints; i++)
            checkpoints[n++] =
                (struct gpu_kda_checkpoint){q->checkpoints[i].position, q->checkpoints[i].slot};
    }
}

static void fill_mla(struct device_batch *d, const struct batch *b, uint32_t heads,
                     struct gpu_shape shape) {
    struct gpu_mla_seq *seqs = (struct gpu_mla_seq *)(void *)(d->host + d->mla);
    struct gpu_mla_place *places = (struct gpu_mla_place *)(void *)(d->host + d->places);
    d->n_pages = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        const struct batch_seq *q = &b->seqs[s];
        uint32_t pages = (q->pos0 + q->rows + PAGE_TOKENS - 1) / PAGE_TOKENS;
        if (d->n_pages + pages <= d->room_pages)
            memcpy(d->pages + d->n_pages, q->pages, pages * sizeof *d->pages);
        for (uint32_t i = 0; i < q->rows; i++) {
            uint32_t position = q->pos0 + i;
            seqs[q->row0 + i] = (struct gpu_mla_seq){
                .row = q->row0 + i, .positions = position + 1, .first_page = (uint32_t)d->n_pages};
            places[q->row0 + i] = (struct gpu_mla_place){
                position < q->kept ? -1 : q->pages[position / PAGE_TOKENS], position % PAGE_TOKENS};
        }
        d->n_pages += pages;
    }
    for (int decode = 0; decode < 2; decode++) {
        struct device_absorbed a = device_absorbed_begin(b, decode);
        while (device_absorbed_next(d, b, &a)) {
            uint32_t shares = gpu_mla_shares(a.rows, heads, shape);
            for (uint32_t i = a.row; i < a.row + a.rows; i++)
                seqs[i].share = gpu_mla_share(shares, seqs[i].positions);
        }
    }
}

void device_batch_fill(struct device_batch *d, const struct batch *b, uint32_t heads,
                       uint32_t vocab, struct gpu_shape shape) {
    lay_out(d, b->n_rows, b->n_logits);
    memcpy(d->host + d->ids, b->ids, b->n_rows * sizeof *b->ids);
    int32_t *gather = (int32_t *)(void *)(d->host + d->gather);
    struct gpu_draw *draws = (struct gpu_draw *)(void *)(d->host + d->draws);
    for (uint32_t i = 0; i < b->n_logits; i++) {
        gather[i] = (int32_t)b->logits[i].row;
        draws[i] =
            vocab ? device_draw(&b->logits[i], vocab) : (struct gpu_draw){.how = GPU_DRAW_NOT};
    }
    fill_kda(d, b);
    if (heads)
        fill_mla(d, b, heads, shape);
}
