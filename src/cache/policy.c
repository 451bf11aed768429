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
    const uint64_t most = INT32_MAX / PAGE_TOKENS * PAGE_TOKENS;
    uint64_t r = 0;
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                             "interval '%.*s' is not a whole number of tokens", (int)n, digits);
        r = r > most ? r : 10 * r + (uint64_t)(digits[i] - '0');
    }
    if (r == 0 || r > most || r % PAGE_TOKENS)
        return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                         "interval '%.*s' must be a multiple of %d tokens from %d to %" PRIu64,
                         (int)n, digits, PAGE_TOKENS, PAGE_TOKENS, most);
    p->interval = (uint32_t)r;
    return WEIR_OK;
}

/* The reason that a part names, CHECKPOINT_REASONS: none. */
static enum checkpoint_reason part_reason(const char *part, size_t n) {
    for (int r = 0; r <= CHECKPOINT_INTERVAL; r++) {
        size_t len = strlen(names[r]);
        if (n >= len && !strncmp(names[r], part, len) &&
            (n == len || (r == CHECKPOINT_INTERVAL && part[len] == ':')))
            return (enum checkpoint_reason)r;
    }
    return CHECKPOINT_REASONS;
}

static weir_status unknown_part(const char *part, size_t n, weir_error *err) {
    if (n == 0)
        return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy", "a name is missing beside '+'");
    if (n == 4 && !strncmp(part, "none", n))
        return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                         "'none' goes with no other name");
    size_t joint = strcspn(part, ", ");
    return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                     "'%.*s' is none of end-of-prompt, junction, end-of-turn, interval:R and "
                     "default%s",
                     (int)n, part, joint < n ? "; names are joined by '+'" : "");
}

weir_status checkpoint_policy_parse(const char *text, struct checkpoint_policy *out,
                                    weir_error *err) {
    static const char whole[] = "default";
    bool seen[CHECKPOINT_REASONS] = {false}, seen_default = false;
    *out = checkpoint_policy_default();
    if (!text)
        return WEIR_OK;
    memset(out->keeps, 0, sizeof out->keeps);
    if (!strcmp(text, "none"))
        return WEIR_OK;
    for (const char *part = text;; part++) {
        size_t n = strcspn(part, "+");
        bool is_default = n == sizeof whole - 1 && !strncmp(part, whole, n);
        enum checkpoint_reason r = part_reason(part, n);
        if (is_default ? seen_default : r < CHECKPOINT_REASONS && seen[r])
            return weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy", "%s is named twice",
                             is_default ? whole : names[r]);
        if (is_default) {
            seen_default = true;
            for (int k = 0; k <= CHECKPOINT_INTERVAL; k++)
                out->keeps[k] = true;
        } else if (r < CHECKPOINT_REASONS) {
            seen[r] = out->keeps[r] = true;
        } else {
            return unknown_part(part, n, err);
        }
        if (r == CHECKPOINT_INTERVAL) {
            size_t skip = strlen(names[r]) + 1;
            weir_status st = n < skip ? weir_fail(err, WEIR_BAD_VALUE, "checkpoint_policy",
                                                  "'interval' needs its tokens, as interval:8192")
                                      : parse_interval(part + skip, n - skip, out, err);
            if (st)
                return st;
        }
        part += n;
        if (!*part)
            return WEIR_OK;
    }
}

bool checkpoint_policy_keeps_states(const struct checkpoint_policy *p) {
    for (int r = 0; r < CHECKPOINT_REASONS; r++)
        if (p->keeps[r])
            return true;
    return false;
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
