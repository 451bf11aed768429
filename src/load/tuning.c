/* tuning.c: see tuning.h. Called by `weir tune` and by whoever opens a program. */
#include "load/tuning.h"

#include "base/cpu.h"
#include "base/file.h"
#include "base/log.h"
#include "base/plural.h"
#include "base/version.h"
#include "model/json_fields.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FORMAT = 1, MOST_BYTES = 16 << 20 };

/* What computes, and how it is told from others of that name. */
static void identity(const char *device, char *processor, size_t cap, const char **level) {
    if (device)
        snprintf(processor, cap, "%s", device);
    else
        cpu_identity(processor, cap);
    *level = device ? "gpu" : cpu_level_name(cpu_best());
}

struct tuning *tuning_new(uint32_t threads, const char *device) {
    struct tuning *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    snprintf(t->weir, sizeof t->weir, "%s", WEIR_VERSION);
    const char *level;
    identity(device, t->processor, sizeof t->processor, &level);
    snprintf(t->level, sizeof t->level, "%s", level);
    t->threads = threads;
    return t;
}

bool tuning_add(struct tuning *t, const struct tuning_row *row) {
    struct tuning_row *more = realloc(t->row, (t->n + 1) * sizeof *more);
    if (!more)
        return false;
    t->row = more;
    t->row[t->n++] = *row;
    return true;
}

void tuning_free(struct tuning *t) {
    if (!t)
        return;
    free(t->row);
    free(t);
}

/* --------------------------------------------------------------------------------------- reading
 */

/* A text that fits. */
static void read_text(struct json_fields *f, const char *name, char *out, size_t cap) {
    const char *text = json_field_string(f, name, true);
    if (text && strlen(text) >= cap)
        json_field_refuse(f, name, NULL, WEIR_BAD_FILE, "has more than %zu letters", cap - 1);
    else if (text)
        snprintf(out, cap, "%s", text);
}

static void read_row(struct json_fields *f, struct tuning_row *r) {
    char operation[32] = "", rows[16] = "";
    read_text(f, "column", r->column, sizeof r->column);
    read_text(f, "operation", operation, sizeof operation);
    read_text(f, "shape", r->shape, sizeof r->shape);
    read_text(f, "rows", rows, sizeof rows);
    read_text(f, "variant", r->variant, sizeof r->variant);
    r->us = json_field_number(f, "us", true, 0, 0, 1e12);
    r->default_us = json_field_number(f, "default_us", true, 0, 0, 1e12);
    r->kind = op_named(operation);
    r->rows = row_class_named(rows);
    if (r->kind == OP_COUNT)
        json_field_refuse(f, "operation", json_field(f, "operation"), WEIR_BAD_FILE,
                          "must be the name of an operation");
    if (r->rows == ROW_CLASSES)
        json_field_refuse(f, "rows", json_field(f, "rows"), WEIR_BAD_FILE,
                          "must be 1, 2, 3-4, 5-8, 9-16, 17-64 or 65-");
}

static weir_status read_rows(const json_t *list, struct tuning *t, weir_error *err) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        char scope[32];
        struct tuning_row row = {0};
        snprintf(scope, sizeof scope, "rows[%zu].", i);
        struct json_fields f = {
            .first = json_array_get(list, i), .scope = scope, .path = t->path, .err = err};
        if (!json_is_object(f.first))
            return weir_fail(err, WEIR_BAD_FILE, t->path, "field rows[%zu]: must be an object", i);
        read_row(&f, &row);
        if (f.status)
            return f.status;
        if (!tuning_add(t, &row))
            return weir_fail(err, WEIR_NO_MEMORY, t->path, "no memory for its rows");
    }
    return WEIR_OK;
}

static weir_status read_table(const json_t *top, struct tuning *t, weir_error *err) {
    if (!json_is_object(top))
        return weir_fail(err, WEIR_BAD_FILE, t->path, "must be a JSON object");
    struct json_fields f = {.first = top, .scope = "", .path = t->path, .err = err};
    json_field_integer(&f, "weir_tuning", true, 0, FORMAT, FORMAT);
    read_text(&f, "weir", t->weir, sizeof t->weir);
    read_text(&f, "processor", t->processor, sizeof t->processor);
    read_text(&f, "level", t->level, sizeof t->level);
    t->threads = (uint32_t)json_field_integer(&f, "threads", true, 1, 1, UINT32_MAX);
    const json_t *rows = json_field(&f, "rows");
    if (!json_is_array(rows))
        json_field_refuse(&f, "rows", rows, WEIR_BAD_FILE, "must be an array");
    return f.status ? f.status : read_rows(rows, t, err);
}

weir_status tuning_read(const char *path, struct tuning **out, weir_error *err) {
    char *text;
    size_t bytes;
    json_t *top;
    *out = NULL;
    weir_status s = file_read(path, MOST_BYTES, &text, &bytes, err);
    if (s)
        return s;
    s = json_text_parse(text, bytes, path, &top, err);
    free(text);
    if (s)
        return s;
    struct tuning *t = calloc(1, sizeof *t);
    if (t) {
        snprintf(t->path, sizeof t->path, "%s", path);
        s = read_table(top, t, err);
    } else {
        s = weir_fail(err, WEIR_NO_MEMORY, path, "no memory to read it");
    }
    json_decref(top);
    if (s)
        tuning_free(t);
    else
        *out = t;
    return s;
}

bool tuning_is_ours(const struct tuning *t, uint32_t threads, const char *device,
                    char why[TUNING_WHY]) {
    struct tuning *mine = tuning_new(threads, device);
    bool ours = false;
    if (!mine)
        snprintf(why, TUNING_WHY, "there is no memory to compare it");
    else if (strcmp(t->weir, mine->weir) != 0)
        snprintf(why, TUNING_WHY, "weir %s made it, and this is %s", t->weir, mine->weir);
    else if (strcmp(t->processor, mine->processor) != 0)
        snprintf(why, TUNING_WHY, "it was made on '%s', and this is '%s'", t->processor,
                 mine->processor);
    else if (strcmp(t->level, mine->level) != 0)
        snprintf(why, TUNING_WHY, "it was made with the instructions of %s, and these are %s",
                 t->level, mine->level);
    else if (t->threads != threads)
        snprintf(why, TUNING_WHY, "it was made with %u %s, and there are %u", t->threads,
                 plural(t->threads, "thread", "threads"), threads);
    else
        ours = true;
    tuning_free(mine);
    return ours;
}

bool tuning_row_is_of(const struct tuning_row *r, const struct column *c, const struct op *op) {
    char shape[OP_SIGNATURE];
    if (r->kind != op->kind || strcmp(r->column, c->name) != 0)
        return false;
    op_signature(op, shape);
    return strcmp(r->shape, shape) == 0;
}

/* --------------------------------------------------------------------------------------- writing
 */

static json_t *table_json(const struct tuning *t) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tuning_row *r = &t->row[i];
        json_array_append_new(
            rows, json_pack("{s:s,s:s,s:s,s:s,s:s,s:f,s:f}", "column", r->column, "operation",
                            op_name(r->kind), "shape", r->shape, "rows", row_class_name(r->rows),
                            "variant", r->variant, "us", r->us, "default_us", r->default_us));
    }
    return json_pack("{s:i,s:s,s:s,s:s,s:I,s:o}", "weir_tuning", FORMAT, "weir", t->weir,
                     "processor", t->processor, "level", t->level, "threads",
                     (json_int_t)t->threads, "rows", rows);
}

weir_status tuning_write(const struct tuning *t, const char *path, weir_error *err) {
    char *beside = NULL;
    json_t *table = table_json(t);
    weir_status s = table ? file_make_directories(path, err)
                          : weir_fail(err, WEIR_NO_MEMORY, path, "no memory to write it");
    if (!s && asprintf(&beside, "%s.%ld", path, (long)getpid()) < 0) {
        beside = NULL;
        s = weir_fail(err, WEIR_NO_MEMORY, path, "no memory to write it");
    }
    FILE *f = s ? NULL : fopen(beside, "we");
    bool good = f && !json_dumpf(table, f, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) &&
                fputc('\n', f) != EOF;
    good = f && !fclose(f) && good && !rename(beside, path);
    if (!s && !good)
        s = weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
    if (s && f)
        unlink(beside);
    free(beside);
    json_decref(table);
    return s;
}

/* ----------------------------------------------------------------------------------- which table
 */

/* One name for everything the table is made for. */
static bool key_of(const struct tuning_for *f, const struct mapping *config, char hex[17]) {
    uint8_t sum[EVP_MAX_MD_SIZE];
    char about[320], processor[128];
    const char *level;
    identity(f->device, processor, sizeof processor, &level);
    int n = snprintf(about, sizeof about, "weir tuning %d\n%s\n%s\n%s\n%d %d %u\n", FORMAT,
                     processor, level, f->column->name, (int)f->dense, (int)f->kv, f->threads);
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    bool ok = c && EVP_DigestInit_ex2(c, EVP_sha256(), NULL) &&
              EVP_DigestUpdate(c, about, (size_t)n) &&
              EVP_DigestUpdate(c, config->data, config->bytes) && EVP_DigestFinal_ex(c, sum, NULL);
    EVP_MD_CTX_free(c);
    for (int i = 0; ok && i < 8; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    return ok;
}

char *tuning_default_path(const struct tuning_for *f, weir_error *err) {
    char hex[17], name[64], *path = NULL, *config_path = file_join(f->model, "config.json");
    struct mapping config;
    if (!config_path) {
        weir_fail(err, WEIR_NO_MEMORY, f->model, "no memory");
        return NULL;
    }
    weir_status s = file_map(config_path, &config, err);
    free(config_path);
    if (s)
        return NULL;
    bool ok = key_of(f, &config, hex);
    file_unmap(&config);
    snprintf(name, sizeof name, "weir/tuning/%s.json", ok ? hex : "");
    if (ok)
        path = file_user_path("XDG_CACHE_HOME", ".cache", name);
    if (!path)
        weir_fail(err, WEIR_BAD_VALUE, "HOME",
                  "neither XDG_CACHE_HOME nor HOME says where the table of a model belongs: name a "
                  "file");
    return path;
}

static weir_status use(const char *path, bool named, const struct tuning_for *f,
                       struct tuning **out, weir_error *err) {
    char why[TUNING_WHY];
    weir_error fault;
    weir_status s = tuning_read(path, out, named ? err : &fault);
    if (s && named)
        return s;
    if (s)
        log_line(LOG_WARN, "tuning: %s: %s: not used", fault.where, fault.message);
    else if (!tuning_is_ours(*out, f->threads, f->device, why)) {
        log_line(LOG_WARN, "tuning: %s is not used: %s", path, why);
        tuning_free(*out);
        *out = NULL;
    }
    return WEIR_OK;
}

weir_status tuning_choose(const char *choice, const struct tuning_for *f, struct tuning **out,
                          weir_error *err) {
    weir_error ignored;
    *out = NULL;
    if (!choice || !strcmp(choice, "none") || !f->column->variants)
        return WEIR_OK;
    if (strcmp(choice, "auto") != 0)
        return use(choice, true, f, out, err);
    char *path = tuning_default_path(f, &ignored);
    weir_status s = WEIR_OK;
    if (path && access(path, F_OK) == 0)
        s = use(path, false, f, out, err);
    free(path);
    return s;
}
