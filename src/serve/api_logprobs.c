/* api_logprobs.c: writes log probabilities. Called by api_reply.c.
 * Invariant that bites: the drawn token is always listed, also when it is not among the best, and
 * no two keys of one object are equal although two tokens may show the same text. */
#include "serve/api_logprobs.h"

#include "serve/json_write.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

static bool is_full(const struct text *out, const struct logprob_style *style) {
    return style->most_bytes && out->n > style->most_bytes;
}

static void put_value(struct text *out, float logprob) {
    if (isfinite(logprob))
        json_put_float(out, logprob);
    else
        text_puts(out, "-9999.0");
}

/* The quoted text of a token. */
static void put_token(struct text *out, const struct logprob_style *style, int32_t id) {
    if (style->tokens_as_ids) {
        text_puts(out, "\"token_id:");
        json_put_int(out, id);
        text_puts(out, "\"");
        return;
    }
    size_t n;
    const char *s = tokenizer_piece(style->tokenizer, id, &n);
    json_put_string(out, s, n);
}

static void put_pair(struct text *out, const struct logprob_style *style, int32_t id,
                     float logprob) {
    size_t n;
    const char *s = tokenizer_piece(style->tokenizer, id, &n);
    text_puts(out, "{\"token\":");
    put_token(out, style, id);
    text_puts(out, ",\"logprob\":");
    put_value(out, logprob);
    text_puts(out, ",\"bytes\":");
    json_put_bytes(out, s, n);
}

static uint32_t shown_top(const struct logprob_style *style, const weir_token *t) {
    return t->n_top < style->top ? t->n_top : style->top;
}

void logprobs_write_chat(struct text *out, const struct logprob_style *style,
                         const struct choice_logprob *entries, size_t n) {
    text_puts(out, "{\"content\":[");
    for (size_t i = 0; i < n && !is_full(out, style); i++) {
        const weir_token *t = &entries[i].token;
        if (i)
            text_puts(out, ",");
        put_pair(out, style, t->id, t->logprob);
        text_puts(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < shown_top(style, t); k++) {
            if (k)
                text_puts(out, ",");
            put_pair(out, style, t->top[k].id, t->top[k].logprob);
            text_puts(out, "}");
        }
        text_puts(out, "]}");
    }
    text_puts(out, "],\"refusal\":null}");
}

/* {"text":value,...}: the best ones, and the token itself; the first of equal texts stays. */
static void put_top_map(struct text *out, const struct logprob_style *style, const weir_token *t) {
    struct text keys[WEIR_MAX_LOGPROBS + 1] = {{0}};
    uint32_t top = shown_top(style, t), used = 0;
    text_puts(out, "{");
    for (uint32_t k = 0; k <= top; k++) {
        int32_t id = k < top ? t->top[k].id : t->id;
        float value = k < top ? t->top[k].logprob : t->logprob;
        put_token(&keys[used], style, id);
        bool twice = false;
        for (uint32_t j = 0; j < used && !twice; j++)
            twice = strcmp(keys[j].data, keys[used].data) == 0;
        if (twice) {
            text_clear(&keys[used]);
            continue;
        }
        if (used)
            text_puts(out, ",");
        text_append(out, keys[used].data, keys[used].n);
        text_puts(out, ":");
        put_value(out, value);
        used++;
    }
    text_puts(out, "}");
    for (uint32_t k = 0; k <= WEIR_MAX_LOGPROBS; k++)
        text_free(&keys[k]);
}

/* Characters of a token's own bytes, the way the decoder of a prompt counts them. */
static size_t offset_after(const struct logprob_style *style, struct utf8_stream *stream,
                           int32_t id) {
    struct text bytes = {0}, clean = {0};
    size_t chars = 0;
    tokenizer_decode(style->tokenizer, &id, 1, true, &bytes);
    if (bytes.n)
        utf8_push(stream, bytes.data, bytes.n, &clean);
    for (size_t i = 0; i < clean.n; i++)
        chars += ((unsigned char)clean.data[i] & 0xC0) != 0x80;
    text_free(&bytes);
    text_free(&clean);
    return chars;
}

enum column { TOKENS, VALUES, TOPS, OFFSETS };

static void put_column(struct text *out, const struct logprob_style *style, enum column column,
                       const struct logprob_prompt *prompt, const struct choice_logprob *entries,
                       size_t n) {
    size_t head = prompt ? prompt->n : 0, chars = 0;
    struct utf8_stream stream = {{0}, 0};
    text_puts(out, "[");
    for (size_t i = 0; i < head + n && !is_full(out, style); i++) {
        const weir_token *t = i >= head                 ? &entries[i - head].token
                              : i > 0 && prompt->scored ? &prompt->scored[i - 1]
                                                        : NULL;
        int32_t id = i < head ? prompt->ids[i] : t->id;
        if (i)
            text_puts(out, ",");
        switch (column) {
        case TOKENS: put_token(out, style, id); break;
        case VALUES:
            if (t)
                put_value(out, t->logprob);
            else
                text_puts(out, "null");
            break;
        case TOPS:
            if (t)
                put_top_map(out, style, t);
            else
                text_puts(out, "null");
            break;
        case OFFSETS:
            json_put_int(out, (int64_t)(i < head ? chars : entries[i - head].char_offset));
            if (i < head)
                chars += offset_after(style, &stream, id);
            break;
        }
    }
    text_puts(out, "]");
}

void logprobs_write_completion(struct text *out, const struct logprob_style *style,
                               const struct logprob_prompt *prompt,
                               const struct choice_logprob *entries, size_t n) {
    text_puts(out, "{\"tokens\":");
    put_column(out, style, TOKENS, prompt, entries, n);
    text_puts(out, ",\"token_logprobs\":");
    put_column(out, style, VALUES, prompt, entries, n);
    text_puts(out, ",\"top_logprobs\":");
    if (style->top == 0)
        text_puts(out, "null");
    else
        put_column(out, style, TOPS, prompt, entries, n);
    text_puts(out, ",\"text_offset\":");
    put_column(out, style, OFFSETS, prompt, entries, n);
    text_puts(out, "}");
}

static void put_ranked(struct text *out, const struct logprob_style *style, int32_t id,
                       float logprob, uint32_t rank) {
    size_t n;
    const char *s = tokenizer_piece(style->tokenizer, id, &n);
    text_puts(out, "\"");
    json_put_int(out, id);
    text_puts(out, "\":{\"logprob\":");
    put_value(out, logprob);
    text_puts(out, ",\"rank\":");
    json_put_int(out, rank);
    text_puts(out, ",\"decoded_token\":");
    json_put_string(out, s, n);
    text_puts(out, "}");
}

void logprobs_write_prompt(struct text *out, const struct logprob_style *style,
                           const struct logprob_prompt *prompt) {
    text_puts(out, "[null");
    for (size_t i = 0; prompt->scored && i + 1 < prompt->n && !is_full(out, style); i++) {
        const weir_token *t = &prompt->scored[i];
        bool listed = false;
        text_puts(out, ",{");
        for (uint32_t k = 0; k < shown_top(style, t); k++) {
            if (k)
                text_puts(out, ",");
            put_ranked(out, style, t->top[k].id, t->top[k].logprob, k + 1);
            listed |= t->top[k].id == t->id;
        }
        if (!listed) {
            if (shown_top(style, t))
                text_puts(out, ",");
            put_ranked(out, style, t->id, t->logprob, t->rank);
        }
        text_puts(out, "}");
    }
    text_puts(out, "]");
}
