/* prices.c: named tables of prices. Called by commands, reports and plans. A table is one column of
 * one source at one time; nothing here joins two. */
#include "machine/prices.h"

#include "base/file.h"
#include "machine/data.h"

#include <math.h>
#include <string.h>

enum { LIMIT = 1 << 20 };

const char *price_table_name(size_t i) {
    const char *name;
    size_t bytes;
    return data_price_table(i, &name, &bytes) ? name : NULL;
}

void price_table_free(struct price_table *t) {
    free(t->row);
    *t = (struct price_table){0};
}

static weir_status read_rows(const json_t *machines, const char *path, struct price_table *out,
                             weir_error *err) {
    const char *name;
    json_t *value;
    out->row = calloc(json_object_size(machines), sizeof *out->row);
    if (!out->row)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its rows");
    json_object_foreach((json_t *)(uintptr_t)machines, name, value) {
        struct price_row *r = &out->row[out->n++];
        char scope[64];
        snprintf(r->machine, sizeof r->machine, "%s", name);
        snprintf(scope, sizeof scope, "machines.%s.", name);
        weir_status s = data_no_others(value, path, scope, "dollars, kilowatts", err);
        if (!s)
            s = data_number(value, path, scope, "dollars", true, 1e6, &r->dollars, err);
        if (!s)
            s = data_number(value, path, scope, "kilowatts", false, 1e4, &r->kilowatts, err);
        if (s)
            return s;
    }
    return WEIR_OK;
}

static weir_status read_table(const char *text, size_t bytes, const char *path,
                              struct price_table *out, weir_error *err) {
    json_t *o;
    const json_t *machines = NULL;
    weir_status s = data_parse(text, bytes, path, &o, err);
    if (s)
        return s;
    s = data_no_others(o, path, "", "name, date, source, machines", err);
    if (!s)
        s = data_text(o, path, "", "name", true, out->name, sizeof out->name, err);
    if (!s)
        s = data_text(o, path, "", "source", true, out->source, sizeof out->source, err);
    if (!s)
        s = data_text(o, path, "", "date", true, out->date, sizeof out->date, err);
    if (!s)
        s = data_machines(o, path, &machines, err);
    if (!s)
        s = read_rows(machines, path, out, err);
    json_decref(o);
    return s;
}

static weir_status unknown_table(const char *name, weir_error *err) {
    char list[512] = "";
    for (size_t i = 0, n = 0; price_table_name(i) && n < sizeof list; i++)
        n +=
            (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", price_table_name(i));
    return weir_fail(err, WEIR_BAD_VALUE, "prices",
                     "'%.80s' is no table; there are %s, or FILE.json", name, list);
}

weir_status price_table_open(const char *name, struct price_table *out, weir_error *err) {
    size_t length = strlen(name), bytes;
    const char *known;
    *out = (struct price_table){0};
    weir_status s;
    if (strchr(name, '/') || (length > 5 && !strcmp(name + length - 5, ".json"))) {
        char *text;
        s = file_read(name, LIMIT, &text, &bytes, err);
        if (s)
            return s;
        s = read_table(text, bytes, name, out, err);
        free(text);
    } else {
        const char *text;
        for (size_t i = 0; (text = data_price_table(i, &known, &bytes)); i++)
            if (!strcmp(known, name))
                break;
        if (!text)
            return unknown_table(name, err);
        s = read_table(text, bytes, name, out, err);
    }
    if (s)
        price_table_free(out);
    return s;
}

weir_status price_find(const struct price_table *t, const char *machine,
                       const struct price_row **out, weir_error *err) {
    char list[512] = "";
    *out = NULL;
    for (size_t i = 0; i < t->n; i++)
        if (!strcasecmp(t->row[i].machine, machine)) {
            *out = &t->row[i];
            return WEIR_OK;
        }
    for (size_t i = 0, n = 0; i < t->n && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", t->row[i].machine);
    return weir_fail(err, WEIR_BAD_VALUE, "machine", "'%.80s' is not in table %s, which has %s",
                     machine, t->name, list);
}

weir_status price_of_run(const struct price_table *t, const char *hardware, const char *run,
                         const struct price_row **out, weir_error *err) {
    if (!hardware || !*hardware)
        return weir_fail(err, WEIR_BAD_VALUE, run,
                         "does not say its hardware, so no price of table %s fits it; give --price",
                         t->name);
    return price_find(t, hardware, out, err);
}
