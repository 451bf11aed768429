/* policy.c: checkpoint policies by name. The index asks the parsed form at every boundary a step
 * crosses. */
#include "cache/policy.h"

#include "ops/ops.h"

#include <string.h>

static const char *const names[CHECKPOINT_REASONS] = {
    [CHECKPOINT_PROMPT] = "end-of-prompt", [CHECKPOINT_JUNCTION] = "junction",
    [CHECKPOINT_TURN] = "end-of-turn",     [CHECKPOINT_INTERVAL] = "interval",
    [CHECKPOINT_PREFILL] = "prefill",      [CHECKPOINT_FETCHED] = "fetched",
};

const char *checkpoint_reason_name(enum checkpoint_reason r) {
    return names[r];
}

struct checkpoint_policy checkpoint_policy_default(void) {
    return (struct checkpoint_policy){.keeps = {true, true, true, true},
                                      .interval = CHECKPOINT_DEFAULT_INTERVAL,
                                      .rederive_tokens = CHECKPOINT_DEFAULT_REDERIVE};
}

static weir_status parse_interval(const char *digits, size_t n, struct checkpoint_policy *p,
                                  weir_error *err) {
    uint64_t r = 0;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9' || r > INT32_MAX) {
            r = 0;
            break;
        }
        r = 10 * r + (uint64_t)(digits[i] - '0');
    }
    if (r == 0 || r > INT32_MAX || r % PAGE_TOKENS)
        return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                         "interval '%.*s' must be a multiple of %d tokens", (int)n, digits,
                         PAGE_TOKENS);
    p->keeps[CHECKPOINT_INTERVAL] = true;
    p->interval = (uint32_t)r;
    return WEIR_OK;
}

static weir_status parse_part(const char *part, size_t n, struct checkpoint_policy *p,
                              weir_error *err) {
    static const char interval[] = "interval:";
    if (n > sizeof interval - 1 && !strncmp(part, interval, sizeof interval - 1))
        return parse_interval(part + sizeof interval - 1, n - (sizeof interval - 1), p, err);
    for (int r = 0; r < CHECKPOINT_INTERVAL; r++)
        if (strlen(names[r]) == n && !strncmp(names[r], part, n)) {
            p->keeps[r] = true;
            return WEIR_OK;
        }
    return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                     "'%.*s' is none of end-of-prompt, junction, end-of-turn, interval:R, default "
                     "and none",
                     (int)n, part);
}

weir_status checkpoint_policy_parse(const char *text, struct checkpoint_policy *out,
                                    weir_error *err) {
    *out = checkpoint_policy_default();
    if (!text || !strcmp(text, "default"))
        return WEIR_OK;
    memset(out->keeps, 0, sizeof out->keeps);
    if (!strcmp(text, "none"))
        return WEIR_OK;
    for (const char *part = text;;) {
        size_t n = strcspn(part, "+");
        weir_status st = parse_part(part, n, out, err);
        if (st || !part[n])
            return st;
        part += n + 1;
    }
}

void checkpoint_policy_print(const struct checkpoint_policy *p, char *out, size_t size) {
    size_t n = 0;
    out[0] = 0;
    for (int r = 0; r < CHECKPOINT_REASONS; r++) {
        if (!p->keeps[r] || n >= size)
            continue;
        int k = snprintf(out + n, size - n, "%s%s", n ? "+" : "", names[r]);
        n += k > 0 ? (size_t)k : 0;
        if (r == CHECKPOINT_INTERVAL && n < size)
            snprintf(out + n, size - n, ":%" PRIu32, p->interval);
    }
    if (n == 0)
        snprintf(out, size, "none");
}
