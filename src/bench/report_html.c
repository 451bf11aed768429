/* report_html.c: a growing text, escapes and figures. */
#include "bench/report_html.h"

#include <math.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <string.h>

void html_bytes(struct html *h, const char *bytes, size_t n) {
    if (h->failed)
        return;
    if (h->n + n + 1 > h->room) {
        size_t room = (h->n + n + 1) * 2 + 4096;
        char *more = realloc(h->data, room);
        if (!more) {
            h->failed = true;
            return;
        }
        h->data = more;
        h->room = room;
    }
    memcpy(h->data + h->n, bytes, n);
    h->n += n;
    h->data[h->n] = 0;
}

void html_raw(struct html *h, const char *markup) {
    html_bytes(h, markup, strlen(markup));
}

void html_format(struct html *h, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    WEIR_ASSERT(n >= 0 && (size_t)n < sizeof text);
    html_bytes(h, text, (size_t)n);
}

/* Bytes of the UTF-8 character at s, 0 where there is none. */
static size_t character(const unsigned char *s) {
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return n;
}

void html_text(struct html *h, const char *text) {
    for (const unsigned char *s = (const unsigned char *)text; s && *s;) {
        size_t n = character(s);
        switch (*s) {
        case '&': html_raw(h, "&amp;"); break;
        case '<': html_raw(h, "&lt;"); break;
        case '>': html_raw(h, "&gt;"); break;
        case '"': html_raw(h, "&quot;"); break;
        case '\'': html_raw(h, "&#39;"); break;
        default:
            if (n == 0 || (*s < 0x20 && *s != '\t' && *s != '\n') || *s == 0x7f)
                html_raw(h, "\xef\xbf\xbd");
            else
                html_bytes(h, (const char *)s, n);
        }
        s += n ? n : 1;
    }
}

void html_base64(struct html *h, const void *bytes, size_t n) {
    unsigned char out[4 * 1024 + 1];
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i += 3 * 1024) {
        size_t part = n - i < 3 * 1024 ? n - i : 3 * 1024;
        int length = EVP_EncodeBlock(out, p + i, (int)part);
        html_bytes(h, (const char *)out, (size_t)length);
    }
}

weir_status html_hash(const void *bytes, size_t n, char out[64], weir_error *err) {
    unsigned char hash[EVP_MAX_MD_SIZE], text[48];
    if (!EVP_Digest(bytes, n, hash, NULL, EVP_sha256(), NULL))
        return weir_fail(err, WEIR_NO_MEMORY, "report", "no hash");
    EVP_EncodeBlock(text, hash, 32);
    snprintf(out, 64, "sha256-%s", (const char *)text);
    return WEIR_OK;
}

/* 1234567.8 -> "1,234,568" */
static void thousands(double v, char *out, size_t cap) {
    char digits[48];
    int n = snprintf(digits, sizeof digits, "%.0f", fabs(v));
    size_t k = 0;
    if (v < 0 && cap)
        out[k++] = '-';
    for (int i = 0; i < n && k + 2 < cap; i++) {
        if (i && (n - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = digits[i];
    }
    out[k] = 0;
}

/* Three significant digits, no exponent for what people meet. */
static void significant(double v, char *out, size_t cap) {
    double a = fabs(v);
    if (a == 0)
        snprintf(out, cap, "0");
    else if (a >= 999.5)
        thousands(v, out, cap);
    else if (a >= 99.95)
        snprintf(out, cap, "%.0f", v);
    else if (a >= 9.995)
        snprintf(out, cap, "%.1f", v);
    else if (a >= 0.9995)
        snprintf(out, cap, "%.2f", v);
    else if (a >= 1e-5)
        snprintf(out, cap, "%.*f", (int)(2 - floor(log10(a) + 1e-12)), v);
    else
        snprintf(out, cap, "%.2e", v);
}

static const char *second_name(double unit) {
    return unit == 1 ? "s" : unit == 1e3 ? "ms" : "\xc2\xb5s";
}

const char *figure_text(double v, enum figure kind, char out[FIGURE_BYTES]) {
    char number[40];
    if (!isfinite(v)) {
        strcpy(out, "\xe2\x80\x93");
        return out;
    }
    switch (kind) {
    case FIGURE_NUMBER: significant(v, out, FIGURE_BYTES); break;
    case FIGURE_SECONDS: {
        double a = fabs(v), unit = a >= 0.9995 || a == 0 ? 1 : a >= 0.0009995 ? 1e3 : 1e6;
        significant(v * unit, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "%s %s", number, second_name(unit));
        break;
    }
    case FIGURE_COUNT: thousands(v, out, FIGURE_BYTES); break;
    case FIGURE_PERCENT: snprintf(out, FIGURE_BYTES, "%.1f %%", 100 * v); break;
    case FIGURE_CLOCK: {
        long s = lround(v);
        if (s >= 3600)
            snprintf(out, FIGURE_BYTES, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
        else
            snprintf(out, FIGURE_BYTES, "%ld:%02ld", s / 60, s % 60);
        break;
    }
    case FIGURE_DOLLARS:
        significant(v, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "$%s", number);
        break;
    }
    return out;
}

/* Decimals that tell multiples of `step` apart. */
static int decimals(double step) {
    for (int n = 0; n < 9; n++)
        if (fabs(step * pow(10, n) - round(step * pow(10, n))) < 1e-6 * step * pow(10, n))
            return n;
    return 9;
}

static void tick_number(double v, double step, char *out, size_t cap) {
    if (step > 0)
        snprintf(out, cap, "%.*f", decimals(step), v);
    else
        snprintf(out, cap, "%.4g", v);
}

const char *figure_tick(double v, enum figure kind, double step, char out[FIGURE_BYTES]) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
    char number[32];
    size_t i = 0;
    v = fabs(v) < 1e-9 * step ? 0.0 : v; /* no -0 */
    switch (kind) {
    case FIGURE_NUMBER:
    case FIGURE_COUNT:
        while (units[i].unit > 1 && fabs(v) < units[i].unit * 0.9999999)
            i++;
        tick_number(v / units[i].unit, step / units[i].unit, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "%s%s", v == 0 ? "0" : number, units[i].name);
        return out;
    case FIGURE_SECONDS: {
        double a = fabs(v);
        double unit = a >= 0.9999999 || a == 0 ? 1 : a >= 0.0009999999 ? 1e3 : 1e6;
        tick_number(v * unit, step * unit, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "%s %s", number, second_name(unit));
        return out;
    }
    case FIGURE_PERCENT:
        tick_number(100 * v, 100 * step, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "%s %%", number);
        return out;
    case FIGURE_CLOCK: return figure_text(v, kind, out);
    case FIGURE_DOLLARS:
        tick_number(v, step, number, sizeof number);
        snprintf(out, FIGURE_BYTES, "$%s", v == 0 ? "0" : number);
        return out;
    }
    return out;
}
