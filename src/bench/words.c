/* words.c: the two lists of words. Called by body.c. */
#include "bench/words.h"

#include <string.h>

enum { MOST_WORDS = 65536, LEAST_WORDS = 64, LONGEST = 24 };

static const char common[] =
    " about above accept account across action active actual address advance after again against "
    "agree ahead allow almost alone along already also although always among amount and animal "
    "another answer any appear apply area argue around arrive article ask attack away back bad "
    "balance ball bank base basic be bear beat become bed before begin behind believe below best "
    "better between beyond big bill bird black blood blue board boat body book border both bottom "
    "box branch bread break bridge bring broad brother build burn business but buy by call camp "
    "can capital car card care carry case catch cause center certain chain chair chance change "
    "charge check child choice choose church circle city claim class clean clear climb clock close "
    "cloud coast cold color come common company compare complete concern condition consider "
    "contain "
    "control cook cool copy corner cost could count country course cover create cross crowd cry "
    "current cut dance danger dark date day dead deal dear death decide deep degree demand depend "
    "describe design desk detail develop did die differ dinner direct discover discuss distance "
    "divide do doctor does dog door double doubt down draw dream dress drink drive drop dry due "
    "during each early earth ease east eat edge effect effort egg eight either electric else end "
    "enemy energy engine enjoy enough enter equal escape even evening event ever every exact "
    "example except excite exercise expect experience explain express eye face fact fail fair fall "
    "family famous far farm fast father favor fear feed feel field fight figure fill final find "
    "fine finger finish fire first fish fit five flat floor flow flower fly follow food foot for "
    "force foreign forest forget form forward four free fresh friend from front fruit full future";

static bool make_room(struct words *out, uint32_t n, size_t bytes) {
    *out = (struct words){.word = calloc(n, sizeof *out->word),
                          .bytes = calloc(n, sizeof *out->bytes),
                          .memory = malloc(bytes + 1)};
    if (out->word && out->bytes && out->memory)
        return true;
    words_free(out);
    return false;
}

void words_free(struct words *w) {
    free(w->word);
    free(w->bytes);
    free(w->memory);
    *w = (struct words){0};
}

weir_status words_common(struct words *out, weir_error *err) {
    uint32_t n = 0;
    for (const char *s = common; *s; s++)
        n += *s == ' ';
    if (!make_room(out, n, sizeof common))
        return weir_fail(err, WEIR_NO_MEMORY, "words", "no memory");
    memcpy(out->memory, common, sizeof common);
    for (const char *s = out->memory; *s;) {
        size_t bytes = 1 + strcspn(s + 1, " ");
        out->word[out->n] = s;
        out->bytes[out->n++] = (uint8_t)bytes;
        s += bytes;
    }
    return WEIR_OK;
}

static bool is_word(const char *piece, size_t n) {
    if (n < 3 || n > LONGEST || piece[0] != ' ')
        return false;
    for (size_t i = 1; i < n; i++)
        if (piece[i] < 'a' || piece[i] > 'z')
            return false;
    return true;
}

weir_status words_of(const struct tokenizer *t, const char *dir, struct words *out,
                     weir_error *err) {
    uint32_t ranks = tokenizer_ranks(t);
    if (!make_room(out, MOST_WORDS, (size_t)MOST_WORDS * LONGEST))
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
    struct ids ids = {0};
    char *at = out->memory;
    for (uint32_t id = 0; id < ranks && out->n < MOST_WORDS; id++) {
        size_t n;
        const char *piece = tokenizer_piece(t, (int32_t)id, &n);
        if (tokenizer_kind(t, (int32_t)id) != TOKEN_TEXT || !is_word(piece, n))
            continue;
        /* Behind another word, as it will stand: the pre-tokeniser splits in front of each space.
         */
        char pair[2 * LONGEST + 2];
        memcpy(pair, piece, n);
        memcpy(pair + n, piece, n);
        ids.n = 0;
        tokenizer_encode(t, pair, 2 * n, &ids);
        if (ids.n != 2 || ids.data[0] != (int32_t)id || ids.data[1] != (int32_t)id)
            continue;
        memcpy(at, piece, n);
        out->word[out->n] = at;
        out->bytes[out->n++] = (uint8_t)n;
        at += n;
    }
    ids_free(&ids);
    *at = 0;
    out->exact = true;
    if (out->n >= LEAST_WORDS)
        return WEIR_OK;
    uint32_t n = out->n;
    words_free(out);
    return weir_fail(err, WEIR_BAD_FILE, dir,
                     "the vocabulary has %" PRIu32 " words of a space and letters, %d are needed",
                     n, LEAST_WORDS);
}
