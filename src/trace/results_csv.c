/* results_csv.c: rows as comma-separated values. Called by read_results.c. A row becomes the JSON
 * object that a flat row would be, so that both are checked by the same rules. */
#include "trace/results_inside.h"

#include "base/plural.h"

#include <string.h>

enum { COLUMNS = 128 };

/* Cuts the line into its cells in place; "" inside quotes is one quote. Returns how many, or -1: an
 * open quote, -2: too many. */
static int cut(char *line, char *cell[COLUMNS]) {
    int n = 0;
    for (char *at = line;; at++) {
        if (n == COLUMNS)
            return -2;
        at += strspn(at, " \t");
        char *to = cell[n++] = at;
        if (*at == '"') {
            for (at++;; at++) {
                if (!*at)
                    return -1;
                if (*at == '"' && *++at != '"')
                    break;
                *to++ = *at;
            }
            at += strcspn(at, ",");
        } else {
            at += strcspn(at, ",");
            to = at;
            while (to > cell[n - 1] && (to[-1] == ' ' || to[-1] == '\t'))
                to--;
        }
        bool last = !*at;
        *to = 0;
        if (last)
            return n;
    }
}

/* A number where the cell is one, else text; names of models may well be numbers. */
static json_t *cell_json(const char *name, const char *cell) {
    static const char *const texts[] = {"label",         "series", "hw",        "hardware",
                                        "framework",     "model",  "precision", "spec",
                                        "spec_decoding", "date",   "dataset",   "state"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(name, texts[i]))
            return json_string(cell);
    json_t *v = json_loads(cell, JSON_DECODE_ANY, NULL);
    if (v && json_is_number(v))
        return v;
    json_decref(v);
    return json_string(cell);
}

static weir_status read_row(char *cell[COLUMNS], int n, char *const *name, int names,
                            const char *place, const char *path, struct results *out,
                            weir_error *err) {
    if (n != names)
        return weir_fail(err, WEIR_BAD_FILE, place, "has %d %s, the line of names has %d", n,
                         plural((uint64_t)n, "cell", "cells"), names);
    json_t *row = json_object();
    bool ok = row;
    for (int i = 0; ok && i < n; i++)
        if (*cell[i])
            ok = !json_object_set_new(row, name[i], cell_json(name[i], cell[i]));
    weir_status s = ok ? results_flat(row, place, path, out, err)
                       : weir_fail(err, WEIR_BAD_FILE, place, "is not UTF-8");
    json_decref(row);
    return s;
}

/* Of a column that stands twice nobody could say which is meant. */
static weir_status take_names(char *const *name, int n, const char *place, weir_error *err) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (*name[i] && !strcmp(name[i], name[k]))
                return weir_fail(err, WEIR_BAD_FILE, place, "names the column %s twice", name[i]);
    return WEIR_OK;
}

weir_status results_csv(const char *text, const char *path, struct results *out, weir_error *err) {
    char *copy = strdup(text), *name[COLUMNS], *cell[COLUMNS];
    int names = 0;
    size_t number = 0;
    weir_status s =
        copy ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its results");
    for (char *line = copy, *next; !s && line && *line; line = next) {
        char place[sizeof err->where];
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        line[strcspn(line, "\r")] = 0;
        number++;
        if (*line == '#' || line[strspn(line, " \t")] == 0)
            continue;
        snprintf(place, sizeof place, "%.*s:%zu", (int)sizeof place - 24, path, number);
        int n = cut(line, names ? cell : name);
        if (n < 0)
            s = weir_fail(err, WEIR_BAD_FILE, place,
                          n == -1 ? "a quote is not closed" : "has more than %d cells", COLUMNS);
        else if (!names && n == 1 && strchr(name[0], ';'))
            s = weir_fail(err, WEIR_BAD_FILE, place,
                          "has semicolons between its names; commas are read");
        else if (!names)
            s = take_names(name, names = n, place, err);
        else
            s = read_row(cell, n, name, names, place, path, out, err);
    }
    if (!s && !names)
        s = weir_fail(err, WEIR_BAD_FILE, path, "has no line of names");
    free(copy);
    return s;
}
