/* synth_tokenizer.c: ranks that form a valid byte-pair vocabulary of any size: the 256 bytes, then
 * all pairs of bytes, then triples, each the concatenation of two tokens of lower rank. Common
 * bytes come first, so that small vocabularies shorten English text too. Called by synth.c. */
#include "load/synth_tokenizer.h"
#include "base/file.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

struct rank_writer {
    FILE *f;
    uint32_t next, end;
};

static void put_rank(struct rank_writer *w, const unsigned char *bytes, size_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (w->next == w->end)
        return;
    const uint32_t v =
        (uint32_t)bytes[0] << 16 | (n > 1 ? (uint32_t)bytes[1] << 8 : 0) | (n > 2 ? bytes[2] : 0);
    char text[5] = {digit[v >> 18], digit[v >> 12 & 63], digit[v >> 6 & 63], digit[v & 63], 0};
    for (size_t i = n + 1; i < 4; i++)
        text[i] = '=';
    fprintf(w->f, "%s %" PRIu32 "\n", text, w->next++);
}

/* All byte values, the common ones of English text first. */
static void order_bytes(unsigned char *order) {
    static const char common[] = " etaoinsrhldcumfpgwybvkxjqz.,\n-'\"TAISWHCBMPE0123456789";
    bool used[256] = {false};
    size_t n = 0;
    for (const char *p = common; *p; p++) {
        order[n++] = (unsigned char)*p;
        used[(unsigned char)*p] = true;
    }
    for (unsigned b = 0; b < 256; b++)
        if (!used[b])
            order[n++] = (unsigned char)b;
}

static void put_ranks(struct rank_writer *w) {
    unsigned char order[256], t[3];
    order_bytes(order);
    for (unsigned b = 0; b < 256; b++) {
        t[0] = (unsigned char)b;
        put_rank(w, t, 1);
    }
    /* Shell by shell of the largest index, so that every prefix of the list is made of the most
     * common bytes. All pairs stand before any triple: each triple is a known pair and a byte. */
    for (unsigned s = 0; s < 256 && w->next < w->end; s++)
        for (unsigned i = 0; i <= s; i++)
            for (unsigned j = i == s ? 0 : s; j <= s; j++) {
                t[0] = order[i];
                t[1] = order[j];
                put_rank(w, t, 2);
            }
    for (unsigned s = 0; s < 256 && w->next < w->end; s++)
        for (unsigned i = 0; i <= s; i++)
            for (unsigned j = 0; j <= s; j++)
                for (unsigned k = i == s || j == s ? 0 : s; k <= s; k++) {
                    t[0] = order[i];
                    t[1] = order[j];
                    t[2] = order[k];
                    put_rank(w, t, 3);
                }
}

struct special {
    unsigned offset; /* behind the last rank */
    const char *name;
    bool shown; /* not hidden when decoding */
};

static const struct special k3_ids[] = {{0, "[BOS]", false},
                                        {1, "[EOS]", false},
                                        {2, "<|end_of_msg|>", false},
                                        {3, "<|open|>", true},
                                        {4, "<|close|>", true},
                                        {5, "<|sep|>", true},
                                        {6, "[start_header_id]", false},
                                        {7, "[end_header_id]", false},
                                        {9, "[EOT]", false},
                                        {18, "<|media_begin|>", false},
                                        {19, "<|media_content|>", false},
                                        {20, "<|media_end|>", false},
                                        {21, "<|media_pad|>", false},
                                        {254, "[UNK]", false},
                                        {255, "[PAD]", false}};

static const struct special linear_ids[] = {{0, "[BOS]", false},
                                            {1, "[EOS]", false},
                                            {2, "<|im_end|>", false},
                                            {3, "<|im_user|>", false},
                                            {4, "<|im_assistant|>", false},
                                            {10, "<|im_system|>", false},
                                            {11, "<|tool_calls_section_begin|>", false},
                                            {12, "<|tool_calls_section_end|>", false},
                                            {13, "<|tool_call_begin|>", false},
                                            {14, "<|tool_call_argument_begin|>", false},
                                            {15, "<|tool_call_end|>", false},
                                            {17, "<|im_middle|>", false},
                                            {254, "[UNK]", false},
                                            {255, "[PAD]", false}};

static json_t *tokenizer_config(const struct model *m) {
    const bool k3 = m->family == FAMILY_KIMI_K3;
    const struct special *list = k3 ? k3_ids : linear_ids;
    const size_t n = k3 ? sizeof k3_ids / sizeof *k3_ids : sizeof linear_ids / sizeof *linear_ids;
    json_t *tokens = json_object();
    for (size_t i = 0; i < n; i++) {
        char id[16];
        snprintf(id, sizeof id, "%" PRIu32, m->vocab - SYNTH_SPECIAL_IDS + list[i].offset);
        json_object_set_new(tokens, id,
                            json_pack("{s:s, s:b, s:b, s:b, s:b, s:b}", "content", list[i].name,
                                      "lstrip", 0, "normalized", 0, "rstrip", 0, "single_word", 0,
                                      "special", list[i].shown ? 0 : 1));
    }
    return json_pack("{s:o, s:s, s:s, s:s, s:s, s:b, s:I, s:s}", "added_tokens_decoder", tokens,
                     "bos_token", "[BOS]", "eos_token", "[EOS]", "pad_token", "[PAD]", "unk_token",
                     "[UNK]", "clean_up_tokenization_spaces", 0, "model_max_length",
                     (json_int_t)m->max_position, "tokenizer_class", "TikTokenTokenizer");
}

static weir_status write_failed(const char *path, weir_error *err) {
    return weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
}

weir_status synth_tokenizer(const char *dir, const struct model *m, weir_error *err) {
    char *ranks = file_join(dir, "tiktoken.model"),
         *config = file_join(dir, "tokenizer_config.json");
    json_t *object = tokenizer_config(m);
    weir_status s = WEIR_OK;
    if (!ranks || !config || !object) {
        s = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory for its tokenizer");
        goto done;
    }
    struct rank_writer w = {fopen(ranks, "wb"), 0, m->vocab - SYNTH_SPECIAL_IDS};
    if (!w.f) {
        s = write_failed(ranks, err);
        goto done;
    }
    put_ranks(&w);
    const bool bad = ferror(w.f) != 0;
    if (fclose(w.f) != 0 || bad)
        s = write_failed(ranks, err);
    else if (json_dump_file(object, config, JSON_INDENT(2)) != 0)
        s = write_failed(config, err);
done:
    json_decref(object);
    free(ranks);
    free(config);
    return s;
}
