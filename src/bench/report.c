/* report.c: the page as a whole: head with its policy, banner, parts, downloads. Called by
 * `weir report`. */
#include "bench/report_parts.h"

#include "base/clock.h"
#include "base/plural.h"
#include "bench/report_config.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Style and script stand in files of their own and are included by the assembler. */
#define EMBED(symbol, file)                                                                        \
    __asm__(".section .rodata\n"                                                                   \
            ".global " #symbol "\n"                                                                \
            ".global " #symbol "_bytes\n" #symbol ":\n"                                            \
            ".incbin \"" file "\"\n" #symbol "_end:\n"                                             \
            ".byte 0\n"                                                                            \
            ".balign 8\n" #symbol "_bytes:\n"                                                      \
            ".quad " #symbol "_end - " #symbol "\n"                                                \
            ".text\n");                                                                            \
    extern const char symbol[];                                                                    \
    extern const size_t symbol##_bytes

EMBED(report_style, REPORT_CSS_FILE);
EMBED(report_script, REPORT_JS_FILE);

static weir_status head(struct html *h, const struct report *r, weir_error *err) {
    char style[64], script[64];
    weir_status status = html_hash(report_style, report_style_bytes, style, err);
    if (!status)
        status = html_hash(report_script, report_script_bytes, script, err);
    if (status)
        return status;
    html_raw(h, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html_format(h,
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                "style-src '%s'; script-src '%s'; base-uri 'none'; form-action 'none'\">\n",
                style, script);
    html_raw(h, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
    html_text(h, r->title);
    html_raw(h, "</title>\n<style>");
    html_bytes(h, report_style, report_style_bytes);
    html_raw(h, "</style>\n</head>\n");
    return WEIR_OK;
}

static weir_status download(struct html *h, const char *name, const char *type, const char *text,
                            const void *bytes, size_t n) {
    html_format(
        h, "<a class=\"button\" id=\"get-%s\" download=\"weir-report.%s\" href=\"data:%s;base64,",
        name, name, type);
    html_base64(h, bytes, n);
    html_format(h, "\">%s</a>", text);
    return WEIR_OK;
}

static weir_status downloads(struct html *h, const struct report *r, weir_error *err) {
    json_t *o = report_json(r);
    char *json = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    struct html csv = {0};
    json_decref(o);
    report_csv(&csv, r);
    weir_status status = WEIR_OK;
    if (!json || csv.failed)
        status = weir_fail(err, WEIR_NO_MEMORY, "report", "no memory");
    if (!status) {
        html_raw(h,
                 "<div class=\"tools\"><button type=\"button\" id=\"theme\" hidden>Theme</button>");
        download(h, "csv", "text/csv", "Numbers as CSV", csv.data, csv.n);
        download(h, "json", "application/json", "Numbers as JSON", json, strlen(json));
        html_raw(h, "</div>");
    }
    free(csv.data);
    free(json);
    return status;
}

static void banner(struct html *h, const struct report *r) {
    enum { SCALED, INVALID, CANCELLED, ABORTED, TRAITS };
    static const char *const names[TRAITS] = {"scaled in time or length", "invalid", "cancelled",
                                              "aborted"};
    size_t n[TRAITS] = {0}, all = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct report_point *p = &r->point[i];
        /* A run may be several of these; each is counted. */
        n[SCALED] += p->scaled;
        n[CANCELLED] += p->cancelled;
        n[ABORTED] += p->aborted;
        n[INVALID] += !p->valid && !p->scaled && !point_was_stopped(p);
        all += !point_is_comparable(p);
    }
    if (!all)
        return;
    html_raw(h, "<p class=\"banner\" role=\"note\"><strong>Not comparable:</strong> ");
    if (all == r->n)
        html_raw(h, r->n == 1 ? "this run" : "all runs of this page");
    else
        html_format(h, "%zu of %zu runs", all, r->n);
    html_raw(h, " (");
    const char *joint = "";
    for (int i = 0; i < TRAITS; i++)
        if (n[i]) {
            html_format(h, "%s%zu %s", joint, n[i], names[i]);
            joint = ", ";
        }
    html_raw(h, "). Their marks are hollow and must not be set beside published results; the "
                "reasons stand under <a href=\"#s-validity\">Validity</a>.</p>");
}

static weir_status top(struct html *h, const struct report *r, weir_error *err) {
    time_t now = (time_t)clock_unix();
    struct tm tm;
    char date[32];
    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", &tm);
    html_raw(h, "<body>\n<header><div><h1>");
    html_text(h, r->title);
    html_format(h, "</h1><p class=\"muted\">%zu %s, %zu series. Made %s by weir.</p></div>", r->n,
                plural(r->n, "run", "runs"), r->n_series, date);
    weir_status status = downloads(h, r, err);
    if (status)
        return status;
    html_raw(h, "</header>\n<main>\n<nav aria-label=\"Parts of the page\">"
                "<a href=\"#s-frontier\">Frontier</a><a href=\"#s-runs\">All runs</a>"
                "<a href=\"#s-latency\">Latency</a><a href=\"#s-sources\">Prompt tokens</a>"
                "<a href=\"#s-timelines\">Over the run</a><a href=\"#s-validity\">Validity</a>"
                "<a href=\"#s-configuration\">Configuration</a></nav>\n");
    banner(h, r);
    return WEIR_OK;
}

static weir_status page(struct html *h, const struct report *r, weir_error *err) {
    weir_status status = head(h, r, err);
    if (!status)
        status = top(h, r, err);
    if (status)
        return status;
    static void (*const parts[])(struct html *, const struct report *) = {
        part_frontier,   part_points,    part_latency,  part_sources,
        part_acceptance, part_timelines, part_validity, part_configuration};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i](h, r);
        html_raw(h, "\n");
    }
    html_raw(h, "</main>\n<footer>Percentiles are linear between ranks. Distributions are reduced "
                "to 105 quantiles and timelines to at most 160 parts; the files of each run hold "
                "every record.</footer>\n<script>");
    html_bytes(h, report_script, report_script_bytes);
    html_raw(h, "</script>\n</body>\n</html>\n");
    return h->failed ? weir_fail(err, WEIR_NO_MEMORY, "report", "no memory") : WEIR_OK;
}

/* A page may replace a page; anything else there is a file of somebody's. */
static weir_status check_target(const char *path, weir_error *err) {
    struct stat st;
    char head[16] = "";
    if (stat(path, &st))
        return WEIR_OK; /* writing says what is wrong */
    FILE *f = S_ISREG(st.st_mode) ? fopen(path, "re") : NULL;
    size_t n = f ? fread(head, 1, sizeof head - 1, f) : 0;
    if (f)
        fclose(f);
    if (f && (n == 0 || !strncasecmp(head, "<!doctype html", 14)))
        return WEIR_OK;
    return weir_fail(err, WEIR_BAD_FILE, path,
                     "exists and is no page of HTML: it is not overwritten");
}

/* Beside the final name and then renamed, so that nobody opens half a page. */
static weir_status save(const struct html *h, const char *path, weir_error *err) {
    char *beside = NULL;
    if (asprintf(&beside, "%s.part", path) < 0)
        return weir_fail(err, WEIR_NO_MEMORY, "report", "no memory");
    FILE *f = fopen(beside, "w");
    bool good = f && fwrite(h->data, 1, h->n, f) == h->n;
    good = f && !fclose(f) && good && !rename(beside, path);
    weir_status status =
        good ? WEIR_OK
             : weir_fail(err, WEIR_BAD_FILE, path, "cannot be written: %s", strerror(errno));
    if (!good && f)
        unlink(beside);
    free(beside);
    return status;
}

weir_status report_write(const char *const *dirs, size_t n, const struct report_options *o,
                         const char *out, weir_error *err) {
    struct report r;
    struct html h = {0};
    weir_status status = check_target(out, err);
    if (!status)
        status = report_read(dirs, n, o, &r, err);
    if (status)
        return status;
    status = page(&h, &r, err);
    if (!status)
        status = save(&h, out, err);
    free(h.data);
    report_free(&r);
    return status;
}
