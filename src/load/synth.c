/* synth.c: `weir synth`: a preset, changed as asked, written out as a checkpoint. Called by the
 * command and by tests. Invariant that bites: the config written is read back with the same parser
 * that loads real ones, so nothing can be written that would not load. */
#include "load/synth.h"
#include "base/file.h"
#include "load/synth_shards.h"
#include "load/synth_tokenizer.h"
#include "model/presets.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

enum { SMALLEST_LAYERS = 2, MAX_THREADS = 1024 };

static json_t *text_of(json_t *config) {
    json_t *text = json_object_get(config, "text_config");
    return text ? text : config;
}

static uint32_t number_of(const json_t *object, const char *name) {
    return (uint32_t)json_integer_value(json_object_get(object, name));
}

/* Every fourth layer and the last are MLA, as in the released models. */
static void set_layers(json_t *text, uint32_t layers) {
    json_t *linear = json_object_get(text, "linear_attn_config");
    json_t *kda = json_array(), *full = json_array();
    for (uint32_t l = 1; l <= layers; l++)
        json_array_append_new(l % 4 == 0 || l == layers ? full : kda, json_integer(l));
    json_object_set_new(text, "num_hidden_layers", json_integer(layers));
    json_object_set_new(linear, "kda_layers", kda);
    json_object_set_new(linear, "full_attn_layers", full);
}

/* The special ids stand behind the ranks, wherever those end. */
static void set_vocab(json_t *config, json_t *text, uint32_t vocab) {
    static const char *const names[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                        "media_placeholder_token_id"};
    const json_int_t shift = (json_int_t)vocab - (json_int_t)number_of(text, "vocab_size");
    json_object_set_new(text, "vocab_size", json_integer(vocab));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *id = json_object_get(config, names[i]);
        if (id)
            json_object_set_new(config, names[i], json_integer(json_integer_value(id) + shift));
    }
}

static weir_status bad_option(weir_error *err, const char *option, uint32_t value, const char *rule,
                              uint32_t low, uint32_t high) {
    return weir_fail(err, WEIR_BAD_VALUE, option, "%s %" PRIu32 " to %" PRIu32 ", not %" PRIu32,
                     rule, low, high, value);
}

static weir_status check_options(const struct synth_options *o, weir_error *err) {
    static const char refused[] = "this build writes kimi-k3, kimi-linear, mid and tiny";
    if (strncmp(o->preset, "kimi-k2", 7) == 0)
        return weir_fail(err, WEIR_UNSUPPORTED, "--preset", "%s is not supported: %s", o->preset,
                         refused);
    if (!model_preset(o->preset))
        return weir_fail(err, WEIR_BAD_VALUE, "--preset",
                         "must be kimi-k3, kimi-linear, mid or tiny, not %s", o->preset);
    if (o->layers && (o->layers < SMALLEST_LAYERS || o->layers > MODEL_MAX_LAYERS))
        return bad_option(err, "--layers", o->layers, "must be from", SMALLEST_LAYERS,
                          MODEL_MAX_LAYERS);
    if (o->experts > 16384)
        return bad_option(err, "--experts", o->experts, "must be from", 1, 16384);
    if (o->vocab && (o->vocab < SYNTH_SMALLEST_VOCAB || o->vocab > 1u << 22))
        return bad_option(err, "--vocab", o->vocab, "must be from", SYNTH_SMALLEST_VOCAB, 1u << 22);
    if (o->threads > MAX_THREADS)
        return bad_option(err, "--threads", o->threads, "must be from", 1, MAX_THREADS);
    return WEIR_OK;
}

/* What ranks divide among themselves (the rest each of them has whole), as far as it divides. */
static weir_status divide(json_t *object, const char *const *names, size_t n, uint32_t ranks,
                          weir_error *err) {
    for (size_t i = 0; i < n; i++) {
        uint32_t whole = number_of(object, names[i]);
        if (whole % ranks)
            return weir_fail(err, WEIR_BAD_VALUE, "--tp",
                             "is %" PRIu32 ", which does not divide %s, %" PRIu32, ranks, names[i],
                             whole);
        json_object_set_new(object, names[i], json_integer(whole / ranks));
    }
    return WEIR_OK;
}

static weir_status set_ranks(json_t *config, json_t *text, uint32_t ranks, weir_error *err) {
    static const char *const heads[] = {"num_heads"}, *const widths[] = {"num_attention_heads",
                                                                         "num_key_value_heads",
                                                                         "intermediate_size",
                                                                         "moe_intermediate_size"};
    weir_status s = divide(json_object_get(text, "linear_attn_config"), heads, 1, ranks, err);
    if (!s)
        s = divide(text, widths, sizeof widths / sizeof *widths, ranks, err);
    uint32_t vocab = number_of(text, "vocab_size");
    if (!s && (vocab % ranks || vocab / ranks < SYNTH_SMALLEST_VOCAB))
        s = weir_fail(err, WEIR_BAD_VALUE, "--tp",
                      "is %" PRIu32 ": a vocabulary of %" PRIu32
                      " does not divide into that many of at least %d",
                      ranks, vocab, SYNTH_SMALLEST_VOCAB);
    if (!s)
        set_vocab(config, text, vocab / ranks);
    return s;
}

/* The preset's config with the options applied. */
static weir_status make_config(const struct synth_options *o, json_t **out, weir_error *err) {
    json_t *config = *out = json_loads(model_preset(o->preset), 0, NULL);
    if (!config)
        return weir_fail(err, WEIR_NO_MEMORY, o->out, "no memory for its config.json");
    json_t *text = text_of(config);
    json_object_del(config, "vision_config"); /* only the text model is written */
    if (o->layers)
        set_layers(text, o->layers);
    if (o->experts) {
        json_object_set_new(text, "num_experts", json_integer(o->experts));
        if (number_of(text, "num_experts_per_token") > o->experts)
            json_object_set_new(text, "num_experts_per_token", json_integer(o->experts));
    }
    if (o->vocab)
        set_vocab(config, text, o->vocab);
    return o->ranks > 1 ? set_ranks(config, text, o->ranks, err) : WEIR_OK;
}

/* An empty directory, made where there is none. */
static weir_status prepare_directory(const char *dir, weir_error *err) {
    if (mkdir(dir, 0755) == 0)
        return WEIR_OK;
    if (errno != EEXIST)
        return weir_fail(err, WEIR_BAD_FILE, dir, "cannot be made: %s", strerror(errno));
    DIR *d = opendir(dir);
    if (!d)
        return weir_fail(err, WEIR_BAD_FILE, dir, "cannot be opened: %s", strerror(errno));
    bool empty = true;
    for (const struct dirent *e; (e = readdir(d));)
        empty &= strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    closedir(d);
    return empty ? WEIR_OK
                 : weir_fail(err, WEIR_BAD_FILE, dir,
                             "is not empty: a checkpoint is written into a directory of its own");
}

static weir_status write_json(const char *dir, const char *name, json_t *value, weir_error *err) {
    char *path = file_join(dir, name);
    weir_status s = WEIR_OK;
    if (!path || !value)
        s = weir_fail(err, WEIR_NO_MEMORY, dir, "no memory for %s", name);
    else if (json_dump_file(value, path, JSON_INDENT(2)) != 0)
        s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
    free(path);
    return s;
}

static weir_status write_files(const struct synth_options *o, json_t *config, const struct model *m,
                               struct synth_result *out, weir_error *err) {
    weir_status s = prepare_directory(o->out, err);
    if (s == WEIR_OK)
        s = synth_shards(m, o, out, err);
    if (s == WEIR_OK)
        s = synth_tokenizer(o->out, m, err);
    if (s == WEIR_OK) {
        json_t *generation = json_pack("{s:i, s:i, s:i, s:b, s:f, s:f}", "bos_token_id", m->bos,
                                       "eos_token_id", m->eos[0], "pad_token_id", m->pad,
                                       "do_sample", 1, "temperature", 1.0, "top_p", 1.0);
        s = write_json(o->out, "generation_config.json", generation, err);
        json_decref(generation);
    }
    return s ? s : write_json(o->out, "config.json", config, err);
}

weir_status synth_write(const struct synth_options *o, struct synth_result *out, weir_error *err) {
    struct model m;
    struct synth_result r = {0};
    weir_status s = check_options(o, err);
    if (s)
        return s;
    json_t *config;
    s = make_config(o, &config, err);
    char *text = s ? NULL : json_dumps(config, 0);
    if (!s && !text)
        s = weir_fail(err, WEIR_NO_MEMORY, o->out, "no memory for its config.json");
    if (!s)
        s = model_parse(text, strlen(text), "config.json", &m, err);
    free(text);
    if (s == WEIR_OK)
        s = write_files(o, config, &m, &r, err);
    json_decref(config);
    if (s)
        return s;
    r.layers = m.layers;
    r.experts = m.experts;
    r.vocab = m.vocab;
    *out = r;
    return WEIR_OK;
}
