/* read_azure.c: rows `TIMESTAMP,ContextTokens,GeneratedTokens` behind a header that says so; time
 * as "YYYY-MM-DD hh:mm:ss.fffffff", taken as UTC, counted from the first row. Nothing is said of
 * prefixes: every row is a session of its own, with a fresh prompt. Called by read.c. */
#include "trace/builder.h"

#include "base/plural.h"

#include <string.h>

static const char header[] = "TIMESTAMP,ContextTokens,GeneratedTokens";

enum { TIME_BYTES = 27 };
#define TICKS_A_SECOND INT64_C(10000000)
#define TICK_NS        100

/* Days since 1970-01-01 of a date of the Gregorian calendar, year >= 1. */
static int64_t days_of(int64_t y, int64_t m, int64_t d) {
    y -= m <= 2; /* years that begin in March put the odd day last */
    int64_t era = y / 400, year = y % 400;
    int64_t day = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + year * 365 + year / 4 - year / 100 + day - 719468;
}

static int days_in(int y, int m) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    return days[m - 1] + (m == 2 && leap);
}

static int digits(const char *s, int n) {
    int x = 0;
    for (int i = 0; i < n; i++)
        x = 10 * x + (s[i] - '0');
    return x;
}

/* Ticks of 100 ns since 1970; false where it is no such time. */
static bool parse_time(const char *s, size_t n, int64_t *ticks) {
    static const char shape[] = "0000-00-00 00:00:00.0000000";
    if (n != TIME_BYTES)
        return false;
    for (size_t i = 0; i < n; i++)
        if (shape[i] == '0' ? s[i] < '0' || s[i] > '9' : s[i] != shape[i])
            return false;
    int year = digits(s, 4), month = digits(s + 5, 2), day = digits(s + 8, 2);
    int hour = digits(s + 11, 2), minute = digits(s + 14, 2), second = digits(s + 17, 2);
    if (year < 1970 || month < 1 || month > 12 || day < 1 || day > days_in(year, month) ||
        hour > 23 || minute > 59 || second > 59)
        return false;
    int64_t seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    *ticks = seconds * TICKS_A_SECOND + digits(s + 20, 7);
    return true;
}

static bool parse_count(const char *s, size_t n, uint64_t *out) {
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        x = 10 * x + (uint64_t)(s[i] - '0');
        if (x > UINT64_C(1) << 53)
            return false;
    }
    *out = x;
    return n > 0;
}

static weir_status bad_field(struct builder *b, const char *name, const char *rule, const char *s,
                             size_t n) {
    char shown[60];
    size_t keep = n < sizeof shown - 1 ? n : sizeof shown - 1;
    for (size_t i = 0; i < keep; i++)
        shown[i] = s[i] >= ' ' && s[i] <= '~' ? s[i] : '?';
    shown[keep] = 0;
    return builder_refuse(b, "field %s: must be %s, not '%s'", name, rule, shown);
}

static weir_status read_row(struct builder *b, const char *line, size_t n) {
    const char *field[3] = {line};
    size_t length[3], n_fields = 1;
    for (size_t i = 0; i < n; i++) {
        if (line[i] != ',')
            continue;
        if (n_fields < 3)
            field[n_fields] = line + i + 1;
        n_fields++;
    }
    if (n_fields != 3)
        return builder_refuse(b, "has %zu %s, but the header names 3", n_fields,
                              plural(n_fields, "field", "fields"));
    for (int i = 0; i < 3; i++)
        length[i] = (size_t)((i < 2 ? field[i + 1] - 1 : line + n) - field[i]);

    struct trace_request r = {.agent = -1,
                              .delay = TRACE_ABSENT,
                              .api_time = TRACE_ABSENT,
                              .think_time = TRACE_ABSENT,
                              .ttft = TRACE_ABSENT,
                              .has_out = true};
    int64_t ticks;
    if (!parse_time(field[0], length[0], &ticks))
        return bad_field(b, "TIMESTAMP", "a time YYYY-MM-DD hh:mm:ss.fffffff since 1970", field[0],
                         length[0]);
    if (!parse_count(field[1], length[1], &r.in))
        return bad_field(b, "ContextTokens", "an integer from 0 to 2^53", field[1], length[1]);
    if (!parse_count(field[2], length[2], &r.out))
        return bad_field(b, "GeneratedTokens", "an integer from 0 to 2^53", field[2], length[2]);
    if (b->t.n_requests == 0)
        b->zero_ticks = ticks;
    if (ticks < b->zero_ticks)
        return bad_field(b, "TIMESTAMP", "at or after that of the first row", field[0], length[0]);
    if (ticks - b->zero_ticks > INT64_MAX / TICK_NS)
        return bad_field(b, "TIMESTAMP", "within 290 years of the first row", field[0], length[0]);
    r.t = (ticks - b->zero_ticks) * TICK_NS;
    builder_order(b, "TIMESTAMP", r.t);
    struct trace_session *session;
    weir_status s = builder_turn_session(b, NULL, &session);
    if (s)
        return s;
    session->block_tokens = b->block_tokens;
    session->space = builder_space(b, true);
    r.session = (uint32_t)(session - b->t.sessions);
    return builder_request(b, &r, &(struct builder_extra){0});
}

weir_status read_azure_line(struct builder *b, const char *line, size_t n) {
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
        n--;
    if (b->t.n_requests > 0 || b->has_header)
        return read_row(b, line, n);
    if (n != sizeof header - 1 || memcmp(line, header, n))
        return bad_field(b, "header", header, line, n);
    b->has_header = true;
    return WEIR_OK;
}
