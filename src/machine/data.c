/* data.c: the tables in the program, and checked reading of such files. Called by prices and
 * specifications of GPUs. */
#include "machine/data.h"

#include "machine/data_config.h"

#include <math.h>
#include <string.h>

/* Included by the assembler, so that the files stay plain JSON that people read and copy. */
#define EMBED(symbol, file)                                                                        \
    __asm__(".section .rodata\n"                                                                   \
            ".global data_" #symbol "\n"                                                           \
            "data_" #symbol ":\n"                                                                  \
            ".incbin \"" DATA_DIR "/" file "\"\n"                                                  \
            ".global data_" #symbol "_end\n"                                                       \
            "data_" #symbol "_end:\n"                                                              \
            ".byte 0\n"                                                                            \
            ".text\n");                                                                            \
    extern const char data_##symbol[], data_##symbol##_end[]

EMBED(gpu_specs, "gpus.json");
EMBED(owning_07, "prices/tco-2026-07-owning.json");
EMBED(neocloud_07, "prices/tco-2026-07-neocloud.json");
EMBED(rental_early_07, "prices/tco-2026-07-rental-early.json");
EMBED(rental_late_07, "prices/tco-2026-07-rental-late.json");
EMBED(owning_04, "prices/tco-2026-04-owning.json");
EMBED(neocloud_04, "prices/tco-2026-04-neocloud.json");
EMBED(rental_04, "prices/tco-2026-04-rental.json");
EMBED(wafer, "prices/wafer-2026.json");

#define TABLE(name, symbol)                                                                        \
    { name, data_##symbol, data_##symbol##_end }
static const struct {
    const char *name, *text, *end;
} tables[] = {
    TABLE("tco-2026-07-owning", owning_07),
    TABLE("tco-2026-07-neocloud", neocloud_07),
    TABLE("tco-2026-07-rental-early", rental_early_07),
    TABLE("tco-2026-07-rental-late", rental_late_07),
    TABLE("tco-2026-04-owning", owning_04),
    TABLE("tco-2026-04-neocloud", neocloud_04),
    TABLE("tco-2026-04-rental", rental_04),
    TABLE("wafer-2026", wafer),
};

const char *data_price_table(size_t i, const char **name, size_t *bytes) {
    if (i >= sizeof tables / sizeof *tables)
        return NULL;
    *name = tables[i].name;
    *bytes = (size_t)(tables[i].end - tables[i].text);
    return tables[i].text;
}

const char *data_gpus(size_t *bytes) {
    *bytes = (size_t)(data_gpu_specs_end - data_gpu_specs);
    return data_gpu_specs;
}

/* -------------------------------------------------------------------------------------- reading */

weir_status data_parse(const char *text, size_t bytes, const char *path, json_t **out,
                       weir_error *err) {
    json_error_t fault;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &fault);
    if (!*out)
        return weir_fail(err, WEIR_BAD_FILE, path, "is not valid JSON: line %d, column %d: %s",
                         fault.line, fault.column, fault.text);
    if (json_is_object(*out))
        return WEIR_OK;
    json_decref(*out);
    *out = NULL;
    return weir_fail(err, WEIR_BAD_FILE, path, "is not a JSON object");
}

static weir_status refuse(const json_t *value, const char *path, const char *scope,
                          const char *name, const char *rule, weir_error *err) {
    char *shown =
        value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    weir_status s =
        value ? weir_fail(err, WEIR_BAD_FILE, path, "field %s%s: %s, not %.80s", scope, name, rule,
                          shown ? shown : "?")
              : weir_fail(err, WEIR_BAD_FILE, path, "field %s%s is missing: %s", scope, name, rule);
    free(shown);
    return s;
}

static const json_t *get(const json_t *object, const char *name) {
    const json_t *v = json_object_get(object, name);
    return v && !json_is_null(v) ? v : NULL;
}

weir_status data_number(const json_t *object, const char *path, const char *scope, const char *name,
                        bool required, double most, double *out, weir_error *err) {
    const json_t *v = get(object, name);
    char rule[64];
    *out = NAN;
    snprintf(rule, sizeof rule, "must be a number above 0, at most %g", most);
    if (!v)
        return required ? refuse(NULL, path, scope, name, rule, err) : WEIR_OK;
    double x = json_is_number(v) ? json_number_value(v) : -1;
    if (!(x > 0 && x <= most))
        return refuse(v, path, scope, name, rule, err);
    *out = x;
    return WEIR_OK;
}

weir_status data_text(const json_t *object, const char *path, const char *scope, const char *name,
                      bool required, char *out, size_t cap, weir_error *err) {
    const json_t *v = get(object, name);
    char rule[64];
    out[0] = 0;
    snprintf(rule, sizeof rule, "must be a text of 1 to %zu bytes", cap - 1);
    if (!v)
        return required ? refuse(NULL, path, scope, name, rule, err) : WEIR_OK;
    size_t n = json_is_string(v) ? json_string_length(v) : 0;
    if (n == 0 || n >= cap || strlen(json_string_value(v)) != n)
        return refuse(v, path, scope, name, rule, err);
    memcpy(out, json_string_value(v), n + 1);
    return WEIR_OK;
}

static bool is_among(const char *names, const char *name) {
    size_t n = strlen(name);
    for (const char *p = names; *p; p += strspn(p, ", ")) {
        size_t len = strcspn(p, ",");
        if (len == n && !memcmp(p, name, n))
            return true;
        p += len;
    }
    return false;
}

weir_status data_no_others(const json_t *object, const char *path, const char *scope,
                           const char *names, weir_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach(
        (json_t *)(uintptr_t)object, name,
        value) if (!is_among(names,
                             name)) return weir_fail(err, WEIR_BAD_FILE, path,
                                                     "field %s%.60s is unknown; allowed are %s",
                                                     scope, name, names);
    return WEIR_OK;
}

weir_status data_machines(const json_t *object, const char *path, const json_t **out,
                          weir_error *err) {
    const char *name;
    json_t *value;
    *out = get(object, "machines");
    if (!*out || !json_is_object(*out) || json_object_size(*out) == 0)
        return refuse(*out, path, "", "machines", "must be an object with one member a machine",
                      err);
    json_object_foreach((json_t *)(uintptr_t)*out, name, value) {
        if (!*name || strlen(name) > 31)
            return weir_fail(err, WEIR_BAD_FILE, path,
                             "field machines: the name of a machine has 1 to 31 bytes, not '%.60s'",
                             name);
        if (!json_is_object(value))
            return refuse(value, path, "machines.", name, "must be an object", err);
    }
    return WEIR_OK;
}
