/* tokenizer.c: text to ids and back. Called by the chat renderer and parsers, serve and cli. Puts
 * together the rank file (rank_file.c), the pre-tokeniser (pretokenizer.c) and the merges (bpe.c),
 * and keeps the names of special tokens. Invariant that bites: plain encoding never yields an id >=
 * ranks, whatever the text spells; only tokenizer_encode_special does. */
#include "text/tokenizer.h"

#include "base/file.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/rank_file.h"
#include "text/utf8.h"

#include <string.h>

enum { MAX_VOCAB = 1 << 24, MAX_RANK_FILE = 1 << 28, MAX_CONFIG = 1 << 26 };

struct special {
    const char *spelling;
    uint32_t bytes;
    enum token_kind kind;
};

struct tokenizer {
    struct rank_file file;
    struct bpe bpe;
    uint32_t vocab;
    struct special *special; /* ids ranks .. vocab - 1 */
    char *names;             /* the spellings, one behind the other, each with a NUL */
    int32_t *by_name;        /* indices into special, in the byte order of spellings */
    int32_t *shorter; /* [i]: place in by_name of the longest other name that by_name[i] begins
                         with, or -1 */
    bool begins[256]; /* some name begins with this byte */
};

/* --- opening --------------------------------------------------------------------------------- */

/* Byte order of x and y, where y may have more bytes than are looked at. */
static int compare_names(const struct special *x, const char *y, size_t n) {
    int order = memcmp(x->spelling, y, x->bytes < n ? x->bytes : n);
    return order ? order : (x->bytes > n) - (x->bytes < n);
}

static int by_name_order(const void *a, const void *b, void *arg) {
    const struct special *x = (const struct special *)arg + *(const int32_t *)a;
    const struct special *y = (const struct special *)arg + *(const int32_t *)b;
    return compare_names(x, y->spelling, y->bytes);
}

static bool begins_with(const struct special *k, const char *s, size_t n) {
    return k->bytes <= n && memcmp(k->spelling, s, k->bytes) == 0;
}

static weir_status index_names(struct tokenizer *t, const char *path, weir_error *err) {
    int32_t n = (int32_t)(t->vocab - t->file.ranks);
    for (int32_t i = 0; i < n; i++)
        t->by_name[i] = i;
    qsort_r(t->by_name, (size_t)n, sizeof *t->by_name, by_name_order, t->special);
    for (int32_t i = 0; i < n; i++) {
        const struct special *k = &t->special[t->by_name[i]];
        t->begins[(unsigned char)k->spelling[0]] = true;
        /* All names that this one begins with stand before it, each a beginning of the next. */
        int32_t up = i - 1;
        while (up >= 0 && !begins_with(&t->special[t->by_name[up]], k->spelling, k->bytes))
            up = t->shorter[up];
        t->shorter[i] = up;
        if (up >= 0 && t->special[t->by_name[up]].bytes == k->bytes)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "added_tokens_decoder: ids %" PRIu32 " and %" PRIu32
                             " have the same name \"%s\"",
                             t->file.ranks + (uint32_t)t->by_name[up],
                             t->file.ranks + (uint32_t)t->by_name[i], k->spelling);
    }
    return WEIR_OK;
}

/* The index of the longest special token that text begins with, or -1. */
static int32_t special_at(const struct tokenizer *t, const char *s, size_t n) {
    if (!t->begins[(unsigned char)s[0]])
        return -1;
    int32_t lo = 0, hi = (int32_t)(t->vocab - t->file.ranks);
    while (lo < hi) { /* the first name behind s in byte order */
        int32_t middle = lo + (hi - lo) / 2;
        if (compare_names(&t->special[t->by_name[middle]], s, n) > 0)
            hi = middle;
        else
            lo = middle + 1;
    }
    int32_t place = lo - 1;
    while (place >= 0 && !begins_with(&t->special[t->by_name[place]], s, n))
        place = t->shorter[place];
    return place < 0 ? -1 : t->by_name[place];
}

/* Moves the names into one block and makes up those of ids that have none. */
static bool keep_names(struct tokenizer *t, const struct added_token *added) {
    uint32_t n = t->vocab - t->file.ranks;
    char made_up[48];
    size_t room = 1;
    for (uint32_t i = 0; i < n; i++)
        room += added[i].spelling ? strlen(added[i].spelling) + 1 : sizeof made_up;
    t->names = malloc(room);
    t->special = malloc((n + 1) * sizeof *t->special);
    t->by_name = malloc((n + 1) * sizeof *t->by_name);
    t->shorter = malloc((n + 1) * sizeof *t->shorter);
    if (!t->names || !t->special || !t->by_name || !t->shorter)
        return false;
    size_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        const char *spelling = added[i].spelling;
        if (!spelling)
            snprintf(made_up, sizeof made_up, "<|reserved_token_%" PRIu32 "|>", t->file.ranks + i);
        size_t bytes = strlen(spelling ? spelling : made_up);
        memcpy(t->names + used, spelling ? spelling : made_up, bytes + 1);
        t->special[i] = (struct special){t->names + used, (uint32_t)bytes,
                                         !spelling          ? TOKEN_RESERVED
                                         : added[i].special ? TOKEN_HIDDEN
                                                            : TOKEN_MARKER};
        used += bytes + 1;
    }
    return true;
}

static weir_status add_names(struct tokenizer *t, const char *path, const char *config,
                             size_t n_config, weir_error *err) {
    uint32_t n = t->vocab - t->file.ranks;
    struct added_token *added = calloc(n + 1, sizeof *added);
    if (!added)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for %" PRIu32 " names", n);
    weir_status status = WEIR_OK;
    if (config)
        status = added_tokens_parse(path, config, n_config, t->file.ranks, t->vocab, added, err);
    if (!status && !keep_names(t, added))
        status = weir_fail(err, WEIR_NO_MEMORY, path, "no memory for %" PRIu32 " names", n);
    for (uint32_t i = 0; i < n; i++)
        free(added[i].spelling);
    free(added);
    return status ? status : index_names(t, path, err);
}

static weir_status reject_duplicates(const struct tokenizer *t, const char *path, weir_error *err) {
    for (uint32_t i = 0; i < t->file.ranks; i++) {
        const char *piece = t->file.bytes + t->file.offset[i];
        int32_t found = bpe_find(&t->bpe, piece, t->file.offset[i + 1] - t->file.offset[i]);
        if (found != (int32_t)i)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "ranks %" PRId32 " and %" PRIu32 " are the same token", found, i);
    }
    return WEIR_OK;
}

static weir_status parse(const char *ranks_path, const char *ranks, size_t n_ranks,
                         const char *config_path, const char *config, size_t n_config,
                         uint32_t vocab, struct tokenizer **out, weir_error *err) {
    *out = NULL;
    if (vocab > MAX_VOCAB)
        return weir_fail(err, WEIR_BAD_VALUE, "vocab_size",
                         "is %" PRIu32 ", at most %d are supported", vocab, MAX_VOCAB);
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return weir_fail(err, WEIR_NO_MEMORY, ranks_path, "no memory for a tokenizer");
    t->vocab = vocab;
    weir_status status = rank_file_parse(ranks_path, ranks, n_ranks, vocab, &t->file, err);
    if (!status && !bpe_open(&t->bpe, t->file.bytes, t->file.offset, t->file.ranks))
        status = weir_fail(err, WEIR_NO_MEMORY, ranks_path, "no memory for %" PRIu32 " tokens",
                           t->file.ranks);
    if (!status)
        status = reject_duplicates(t, ranks_path, err);
    if (!status)
        status = add_names(t, config_path, config, n_config, err);
    if (status)
        tokenizer_close(t);
    else
        *out = t;
    return status;
}

weir_status tokenizer_parse(const char *ranks, size_t n_ranks, const char *config, size_t n_config,
                            uint32_t vocab, struct tokenizer **out, weir_error *err) {
    return parse("tiktoken.model", ranks, n_ranks, "tokenizer_config.json", config, n_config, vocab,
                 out, err);
}

weir_status tokenizer_open(const char *dir, uint32_t vocab, struct tokenizer **out,
                           weir_error *err) {
    char *ranks_path = file_join(dir, "tiktoken.model");
    char *config_path = file_join(dir, "tokenizer_config.json");
    char *ranks = NULL, *config = NULL;
    size_t n_ranks, n_config;
    weir_status status;
    *out = NULL;
    if (!ranks_path || !config_path)
        status = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory for a path");
    else if (!(status = file_read(ranks_path, MAX_RANK_FILE, &ranks, &n_ranks, err)) &&
             !(status = file_read(config_path, MAX_CONFIG, &config, &n_config, err)))
        status = parse(ranks_path, ranks, n_ranks, config_path, config, n_config, vocab, out, err);
    free(ranks);
    free(config);
    free(ranks_path);
    free(config_path);
    return status;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t)
        return;
    bpe_close(&t->bpe);
    rank_file_free(&t->file);
    free(t->special);
    free(t->names);
    free(t->by_name);
    free(t->shorter);
    free(t);
}

/* --- encoding -------------------------------------------------------------------------------- */

static void encode_plain(const struct tokenizer *t, const char *s, size_t n, struct ids *out) {
    for (size_t at = 0, end; at < n; at = end) {
        end = pretoken_end(s, n, at);
        bpe_encode(&t->bpe, s + at, end - at, out);
    }
}

static void encode_with_specials(const struct tokenizer *t, const char *s, size_t n,
                                 struct ids *out) {
    size_t plain = 0;
    for (size_t at = 0; at < n;) {
        int32_t k = special_at(t, s + at, n - at);
        if (k < 0) {
            at++;
            continue;
        }
        encode_plain(t, s + plain, at - plain, out);
        ids_push(out, (int32_t)t->file.ranks + k);
        plain = at += t->special[k].bytes;
    }
    encode_plain(t, s + plain, n - plain, out);
}

typedef void encode_slice(const struct tokenizer *t, const char *s, size_t n, struct ids *out);

/* Valid text, window by window and slice by slice as the reference does it. */
static void encode_valid(const struct tokenizer *t, const char *text, size_t bytes,
                         encode_slice *encode, struct ids *out) {
    for (size_t at = 0; at < bytes;) {
        size_t window = pretoken_window_end(text, bytes, at);
        while (at < window) {
            size_t end = pretoken_slice_end(text, window, at);
            encode(t, text + at, end - at, out);
            at = end;
        }
    }
}

static void encode_any(const struct tokenizer *t, const char *text, size_t bytes,
                       encode_slice *encode, struct ids *out) {
    if (utf8_valid(text, bytes)) {
        encode_valid(t, text, bytes, encode, out);
        return;
    }
    struct text repaired = {0};
    struct utf8_stream stream = {0};
    utf8_push(&stream, text, bytes, &repaired);
    utf8_finish(&stream, &repaired);
    encode_valid(t, repaired.data, repaired.n, encode, out);
    text_free(&repaired);
}

void tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, struct ids *out) {
    encode_any(t, text, bytes, encode_plain, out);
}

void tokenizer_encode_special(const struct tokenizer *t, const char *text, size_t bytes,
                              struct ids *out) {
    encode_any(t, text, bytes, encode_with_specials, out);
}

/* --- looking up and decoding ----------------------------------------------------------------- */

int32_t tokenizer_special(const struct tokenizer *t, const char *spelling) {
    size_t n = strlen(spelling);
    int32_t k = n ? special_at(t, spelling, n) : -1;
    return k >= 0 && t->special[k].bytes == n ? (int32_t)t->file.ranks + k : -1;
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *bytes) {
    WEIR_ASSERT(id >= 0 && (uint32_t)id < t->vocab);
    if ((uint32_t)id < t->file.ranks) {
        *bytes = t->file.offset[id + 1] - t->file.offset[id];
        return t->file.bytes + t->file.offset[id];
    }
    const struct special *k = &t->special[(uint32_t)id - t->file.ranks];
    *bytes = k->bytes;
    return k->spelling;
}

enum token_kind tokenizer_kind(const struct tokenizer *t, int32_t id) {
    WEIR_ASSERT(id >= 0 && (uint32_t)id < t->vocab);
    return (uint32_t)id < t->file.ranks ? TOKEN_TEXT
                                        : t->special[(uint32_t)id - t->file.ranks].kind;
}

uint32_t tokenizer_vocab(const struct tokenizer *t) {
    return t->vocab;
}

uint32_t tokenizer_ranks(const struct tokenizer *t) {
    return t->file.ranks;
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_hidden,
                      struct text *out) {
    for (size_t i = 0; i < n; i++) {
        if (skip_hidden && tokenizer_kind(t, ids[i]) == TOKEN_HIDDEN)
            continue;
        size_t bytes;
        const char *piece = tokenizer_piece(t, ids[i], &bytes);
        text_append(out, piece, bytes);
    }
}
