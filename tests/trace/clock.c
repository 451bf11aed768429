/* clock.c: see clock.h. */
#include "tests/test.h"

#include "tests/trace/clock.h"

static struct sent *add(struct play_log *log) {
    if (log->n == log->room) {
        log->room = log->room ? 2 * log->room : 256;
        log->sent = realloc(log->sent, log->room * sizeof *log->sent);
        assert_non_null(log->sent);
    }
    return &log->sent[log->n++];
}

static void send_due(struct schedule *s, int64_t now, service_fn *service, void *arg,
                     struct play_log *log, uint32_t **open, uint32_t *n_open, uint32_t *room) {
    struct call c;
    while (schedule_next(s, now, &c)) {
        struct sent *e = add(log);
        *e = (struct sent){.call = c, .at = now, .how = CALL_OK};
        e->due_on_clock = c.due + schedule_skipped(s);
        e->end = now + service(arg, &c, &e->how);
        assert_true(e->end >= now);
        assert_true(c.due <= now);
        for (uint32_t i = 0; i < *n_open; i++)
            assert_int_not_equal(log->sent[(*open)[i]].call.ticket, c.ticket);
        if (*n_open == *room) {
            *room = *room ? 2 * *room : 64;
            *open = realloc(*open, *room * sizeof **open);
            assert_non_null(*open);
        }
        (*open)[(*n_open)++] = log->n - 1;
        assert_int_equal(schedule_in_flight(s), *n_open);
        if (schedule_alive(s) > log->most_alive)
            log->most_alive = schedule_alive(s);
        if (*n_open > log->most_in_flight)
            log->most_in_flight = *n_open;
    }
}

/* Ends what is over by `now`, in the order of sending. */
static void end_due(struct schedule *s, int64_t now, struct play_log *log, uint32_t *open,
                    uint32_t *n_open) {
    uint32_t kept = 0, n = *n_open;
    for (uint32_t i = 0; i < n; i++) {
        struct sent *e = &log->sent[open[i]];
        if (e->end > now) {
            open[kept++] = open[i];
            continue;
        }
        e->end_on_clock = now + schedule_skipped(s);
        schedule_done(s, e->call.ticket, now, e->how);
    }
    *n_open = kept;
}

void play_schedule(struct schedule *s, int64_t from, int64_t until, service_fn *service, void *arg,
                   struct play_log *log) {
    uint32_t *open = NULL, n_open = 0, room = 0;
    *log = (struct play_log){0};
    for (int64_t now = from;;) {
        send_due(s, now, service, arg, log, &open, &n_open, &room);
        if (schedule_phase(s) == PHASE_ENDED) {
            log->ended = now;
            break;
        }
        int64_t next = schedule_wake(s, now);
        for (uint32_t i = 0; i < n_open; i++)
            if (log->sent[open[i]].end < next)
                next = log->sent[open[i]].end;
        assert_true(next != INT64_MAX); /* it would wait for ever */
        assert_true(next > now || n_open);
        if (now < until && next >= until) {
            now = until;
            schedule_stop(s, now);
        } else {
            now = next;
        }
        end_due(s, now, log, open, &n_open);
    }
    assert_int_equal(n_open, 0);
    assert_int_equal(schedule_in_flight(s), 0);
    assert_int_equal(schedule_alive(s), 0);
    struct call c;
    assert_false(schedule_next(s, INT64_MAX / 2, &c));
    free(open);
}

void play_log_free(struct play_log *log) {
    free(log->sent);
}

void tree_of_text(const char *text, enum trace_format format, struct trace *t, struct tree *tree) {
    weir_error err = {0};
    FILE *in = fmemopen((void *)(uintptr_t)text, strlen(text), "rb");
    assert_non_null(in);
    if (trace_read_stream(in, "text", format, NULL, t, &err) || tree_build(t, tree, &err))
        fail_msg("%s: %s", err.where, err.message);
    fclose(in);
}
