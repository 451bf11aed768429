/* bpe.c: merges the bytes of a pre-token into tokens, lowest rank first, leftmost on ties.
 *
 * The rank file holds no list of merges, but one can be drawn from it: two neighbours a, b are only
 * ever merged into the token ab in the way in which the bytes of ab, alone, are merged last. (No
 * merge has crossed the borders of ab, so what happened inside is what happens to ab alone.) So
 * each token has at most one pair of ids, found at loading, and merging looks up pairs of ids
 * instead of hashing bytes. Invariant that bites: tokens are entered by ascending length, because
 * the merges inside a token need the pairs of all shorter ones. */
#include "text/bpe.h"

#include <string.h>

enum { SHORT_PIECE = 128 }; /* bytes up to which a scan for the minimum beats a heap */

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "weir: no memory to tokenize\n");
        abort();
    }
    return p;
}

/* --- whole pieces ---------------------------------------------------------------------------- */

static inline uint64_t load_bytes(const char *p, size_t n) {
    uint64_t v = 0;
    memcpy(&v, p, n);
    return v;
}

static inline uint64_t mix(uint64_t h) {
    h *= 0x9E3779B97F4A7C15u;
    return h ^ (h >> 32);
}

static inline uint64_t piece_key(const char *p, size_t n) {
    if (n >= 8) {
        uint64_t h = load_bytes(p, 8);
        for (size_t at = 8; at < n; at += 8)
            h = mix(h) + load_bytes(n - at >= 8 ? p + at : p + n - 8, 8);
        return h;
    }
    if (n >= 4)
        return load_bytes(p, 4) | load_bytes(p + n - 4, 4) << (n - 4) * 8;
    const unsigned char *u = (const unsigned char *)p;
    return u[0] | (uint64_t)u[n / 2] << n / 2 * 8 | (uint64_t)u[n - 1] << (n - 1) * 8;
}

static inline size_t piece_slot(const struct bpe *b, uint64_t key, size_t n) {
    return (size_t)(mix(key + n) >> 16) & b->pieces_mask;
}

int32_t bpe_find(const struct bpe *b, const char *piece, size_t n) {
    if (n == 0)
        return -1;
    uint64_t key = piece_key(piece, n);
    for (size_t i = piece_slot(b, key, n); b->pieces[i].bytes; i = (i + 1) & b->pieces_mask) {
        const struct bpe_piece *e = &b->pieces[i];
        if (e->key == key && e->bytes == n &&
            (n <= 8 || memcmp(b->bytes + b->offset[e->id], piece, n) == 0))
            return e->id;
    }
    return -1;
}

static void enter_piece(struct bpe *b, int32_t id) {
    const char *piece = b->bytes + b->offset[id];
    size_t n = b->offset[id + 1] - b->offset[id];
    uint64_t key = piece_key(piece, n);
    size_t i = piece_slot(b, key, n);
    while (b->pieces[i].bytes)
        i = (i + 1) & b->pieces_mask;
    b->pieces[i] = (struct bpe_piece){key, (uint32_t)n, id};
}

/* --- pairs ----------------------------------------------------------------------------------- */

static inline uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Most neighbours are no pair. A bit per hash value, small enough for the second-level cache, says
 * so without a look into the table, which is not. */
enum { FILTER_BITS = 21 };

static inline uint64_t filter_bit(uint64_t hash) {
    return (uint64_t)1 << (hash >> 32 & 63);
}

static inline size_t filter_word(uint64_t hash) {
    return hash >> (64 - (FILTER_BITS - 6));
}

/* The token that a pair merges into, or -1. */
static inline int32_t find_pair(const struct bpe *b, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right), hash = mix(key);
    if (!(b->pair_filter[filter_word(hash)] & filter_bit(hash)))
        return -1;
    for (size_t i = hash & b->pairs_mask;; i = (i + 1) & b->pairs_mask) {
        if (b->pair_keys[i] == key)
            return b->pair_ids[i];
        if (b->pair_keys[i] == UINT64_MAX)
            return -1;
    }
}

static void enter_pair(struct bpe *b, int32_t left, int32_t right, int32_t id) {
    uint64_t key = pair_key(left, right), hash = mix(key);
    size_t i = hash & b->pairs_mask;
    b->pair_filter[filter_word(hash)] |= filter_bit(hash);
    while (b->pair_keys[i] != UINT64_MAX)
        i = (i + 1) & b->pairs_mask;
    b->pair_keys[i] = key;
    b->pair_ids[i] = id;
}

/* --- merging --------------------------------------------------------------------------------- */

static const uint32_t none = UINT32_MAX; /* the rank of a pair that is no token; -1 as an id */

/* ids has room for n; the rank of the pair (i, i + 1) stands in rank[i]. Returns how many ids are
 * left. */
static size_t merge_short(const struct bpe *b, const unsigned char *s, size_t n, int32_t *ids) {
    uint32_t rank[SHORT_PIECE];
    for (size_t i = 0; i < n; i++)
        ids[i] = b->single[s[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = (uint32_t)b->byte_pairs[s[i] << 8 | s[i + 1]];
    while (n > 1) {
        uint32_t least = none;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            least = rank[i] < least ? rank[i] : least;
        if (least == none)
            break;
        while (rank[at] != least)
            at++;
        ids[at] = (int32_t)least;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        if (n - at > 2)
            memmove(rank + at, rank + at + 1, (n - at - 2) * sizeof *rank);
        n--;
        if (at + 1 < n)
            rank[at] = (uint32_t)find_pair(b, ids[at], ids[at + 1]);
        if (at > 0)
            rank[at - 1] = (uint32_t)find_pair(b, ids[at - 1], ids[at]);
    }
    return n;
}

/* A binary heap of rank << 32 | position: the least rank, leftmost, is on top. Entries are not
 * removed when a merge changes a pair; they are recognised as stale when they come up. */
struct heap {
    uint64_t *item;
    size_t n;
};

static void sift_down(struct heap *h, size_t i) {
    uint64_t v = h->item[i];
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->item[child + 1] < h->item[child])
            child++;
        if (h->item[child] >= v)
            break;
        h->item[i] = h->item[child];
    }
    h->item[i] = v;
}

static void heap_push(struct heap *h, uint64_t v) {
    size_t i = h->n++;
    for (; i > 0 && h->item[(i - 1) / 2] > v; i = (i - 1) / 2)
        h->item[i] = h->item[(i - 1) / 2];
    h->item[i] = v;
}

static uint64_t heap_pop(struct heap *h) {
    uint64_t top = h->item[0];
    h->item[0] = h->item[--h->n];
    sift_down(h, 0);
    return top;
}

struct node {
    int32_t id;
    uint32_t rank; /* of the pair with the next node */
    uint32_t next, previous;
};

static size_t merge_long(const struct bpe *b, const unsigned char *s, size_t n, int32_t *ids) {
    const uint32_t end = UINT32_MAX;
    struct node *node = must(malloc(n * sizeof *node));
    /* n - 1 pairs at first, and each of at most n - 1 merges makes two new ones */
    struct heap heap = {must(malloc(3 * n * sizeof(uint64_t))), 0};
    for (size_t i = 0; i < n; i++) {
        uint32_t rank = i + 1 < n ? (uint32_t)b->byte_pairs[s[i] << 8 | s[i + 1]] : none;
        node[i] = (struct node){b->single[s[i]], rank, i + 1 < n ? (uint32_t)i + 1 : end,
                                i > 0 ? (uint32_t)i - 1 : end};
        if (rank != none)
            heap.item[heap.n++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = heap.n / 2; i-- > 0;)
        sift_down(&heap, i);
    while (heap.n > 0) {
        uint64_t top = heap_pop(&heap);
        uint32_t at = (uint32_t)top;
        struct node *left = &node[at];
        if (left->rank != top >> 32)
            continue;
        struct node *right = &node[left->next];
        left->id = (int32_t)left->rank;
        left->next = right->next;
        right->rank = none; /* makes its entries stale; it is out of the list */
        left->rank = none;
        if (left->next != end) {
            node[left->next].previous = at;
            left->rank = (uint32_t)find_pair(b, left->id, node[left->next].id);
            if (left->rank != none)
                heap_push(&heap, (uint64_t)left->rank << 32 | at);
        }
        if (left->previous != end) {
            struct node *before = &node[left->previous];
            before->rank = (uint32_t)find_pair(b, before->id, left->id);
            if (before->rank != none)
                heap_push(&heap, (uint64_t)before->rank << 32 | left->previous);
        }
    }
    size_t left = 0;
    for (uint32_t i = 0; i != end; i = node[i].next)
        ids[left++] = node[i].id;
    free(heap.item);
    free(node);
    return left;
}

void bpe_encode(const struct bpe *b, const char *piece, size_t n, struct ids *out) {
    int32_t whole = bpe_find(b, piece, n);
    if (whole >= 0) {
        ids_push(out, whole);
        return;
    }
    if (n <= SHORT_PIECE) {
        int32_t ids[SHORT_PIECE];
        ids_append(out, ids, merge_short(b, (const unsigned char *)piece, n, ids));
        return;
    }
    int32_t *ids = must(malloc(n * sizeof *ids));
    ids_append(out, ids, merge_long(b, (const unsigned char *)piece, n, ids));
    free(ids);
}

/* --- loading --------------------------------------------------------------------------------- */

static size_t table_size(size_t items) {
    size_t size = 1024;
    while (size / 3 * 2 < items)
        size *= 2;
    return size;
}

/* Token ids by ascending length (a counting sort). NULL without memory. */
static int32_t *by_length(const struct bpe *b) {
    uint32_t longest = 0;
    for (uint32_t i = 0; i < b->ranks; i++)
        if (b->offset[i + 1] - b->offset[i] > longest)
            longest = b->offset[i + 1] - b->offset[i];
    uint32_t *start = calloc((size_t)longest + 2, sizeof *start);
    int32_t *order = malloc(b->ranks * sizeof *order);
    if (start && order) {
        for (uint32_t i = 0; i < b->ranks; i++)
            start[b->offset[i + 1] - b->offset[i] + 1]++;
        for (uint32_t length = 1; length <= longest; length++)
            start[length] += start[length - 1];
        for (uint32_t i = 0; i < b->ranks; i++)
            order[start[b->offset[i + 1] - b->offset[i]]++] = (int32_t)i;
    } else {
        free(order);
        order = NULL;
    }
    free(start);
    return order;
}

static bool enter_all(struct bpe *b) {
    int32_t *order = by_length(b);
    if (!order)
        return false;
    bool ok = true;
    for (uint32_t k = 0; k < b->ranks && ok; k++) {
        int32_t id = order[k];
        const unsigned char *s = (const unsigned char *)b->bytes + b->offset[id];
        size_t n = b->offset[id + 1] - b->offset[id];
        enter_piece(b, id);
        if (n == 1) {
            b->single[s[0]] = id;
            continue;
        }
        int32_t short_ids[SHORT_PIECE];
        int32_t *ids = n <= SHORT_PIECE ? short_ids : malloc(n * sizeof *ids);
        if (!ids) {
            ok = false;
            break;
        }
        size_t left = n <= SHORT_PIECE ? merge_short(b, s, n, ids) : merge_long(b, s, n, ids);
        /* More than two parts: no text ever merges into this token, only a whole pre-token can be
         * it. */
        if (left == 2) {
            enter_pair(b, ids[0], ids[1], id);
            if (n == 2)
                b->byte_pairs[s[0] << 8 | s[1]] = id;
        }
        if (ids != short_ids)
            free(ids);
    }
    free(order);
    return ok;
}

bool bpe_open(struct bpe *b, const char *bytes, const uint32_t *offset, uint32_t ranks) {
    *b = (struct bpe){.ranks = ranks, .bytes = bytes, .offset = offset};
    size_t size = table_size(ranks);
    b->pieces_mask = b->pairs_mask = size - 1;
    b->pieces = calloc(size, sizeof *b->pieces);
    b->pair_keys = malloc(size * sizeof *b->pair_keys);
    b->pair_ids = malloc(size * sizeof *b->pair_ids);
    b->pair_filter = calloc((size_t)1 << (FILTER_BITS - 6), sizeof *b->pair_filter);
    b->byte_pairs = malloc(65536 * sizeof *b->byte_pairs);
    if (b->pieces && b->pair_keys && b->pair_ids && b->pair_filter && b->byte_pairs) {
        memset(b->pair_keys, 0xFF, size * sizeof *b->pair_keys);
        memset(b->byte_pairs, 0xFF, 65536 * sizeof *b->byte_pairs);
        if (enter_all(b))
            return true;
    }
    bpe_close(b);
    return false;
}

void bpe_close(struct bpe *b) {
    free(b->pieces);
    free(b->pair_keys);
    free(b->pair_ids);
    free(b->pair_filter);
    free(b->byte_pairs);
    *b = (struct bpe){0};
}
