/* replay_scrape.c: samples of the server's metrics while a run goes on. Called by replay.c. */
#include "bench/replay_inside.h"

#include "base/plural.h"

#include "bench/adapter.h"

#include <math.h>
#include <string.h>

enum { SCRAPE_LIMIT = 16 << 20, FAILURES_GIVEN_UP = 5 };
#define ANSWER_NS INT64_C(5000000000) /* what is not answered by then is of another moment */
#define USAGE_MAX 1.001

static struct server_sample *new_sample(struct run *run) {
    if (run->n_samples == run->sample_room) {
        uint32_t room = run->sample_room ? 2 * run->sample_room : 64;
        struct server_sample *more = realloc(run->samples, room * sizeof *more);
        if (!more)
            return NULL;
        run->samples = more;
        run->sample_room = room;
    }
    return &run->samples[run->n_samples++];
}

/* False where nothing in it is known. */
static bool take_sample(struct replay *r, const char *text, size_t n, int64_t at) {
    struct server_sample *s = new_sample(r->run);
    if (!s)
        return true;
    s->at = replay_unix(r, at);
    if (adapter_read(r->probe.kind, text, n, s) == 0) {
        r->run->n_samples--;
        return false;
    }
    /* A share; what is more is none, or in percent, and who could tell which. */
    bool full = s->kv_usage > USAGE_MAX, host = s->host_usage > USAGE_MAX;
    s->kv_usage = full ? (double)NAN : s->kv_usage;
    s->host_usage = host ? (double)NAN : s->host_usage;
    r->scrape.too_full += full || host;
    return true;
}

static void on_data(void *user, int status, const char *bytes, size_t n, int64_t at) {
    struct replay *r = user;
    if (r->scrape.text.n + n > SCRAPE_LIMIT)
        client_refuse(r->scrape.exchange, "it has more than 16 MiB");
    else if (status == 200)
        text_append(&r->scrape.text, bytes, n);
}

static void on_ended(void *user, const struct exchange_end *end, int64_t at) {
    struct replay *r = user;
    bool came = end->ok && end->status == 200;
    r->scrape.exchange = NULL;
    bool known = came && take_sample(r, r->scrape.text.data, r->scrape.text.n, at);
    r->scrape.failed += !came;
    r->scrape.unknown += came && !known;
    r->scrape.failures = known ? 0 : r->scrape.failures + 1;
}

int64_t replay_scrape(struct replay *r, int64_t now) {
    static const struct exchange_events events = {.data = on_data, .ended = on_ended};
    if (!r->probe.has_metrics || r->o->sample_seconds <= 0 || r->profiling_start == INT64_MIN ||
        r->scrape.failures >= FAILURES_GIVEN_UP)
        return INT64_MAX;
    if (now < r->scrape.next)
        return r->scrape.next;
    int64_t step = (int64_t)(r->o->sample_seconds * 1e9);
    r->scrape.next = r->scrape.next > now - step ? r->scrape.next + step : now + step;
    if (r->scrape.exchange && now - r->scrape.asked > ANSWER_NS)
        client_cancel(r->client, r->scrape.exchange);
    if (r->scrape.exchange)
        return r->scrape.next;
    text_clear(&r->scrape.text);
    r->scrape.asked = now;
    r->scrape.exchange = client_send(r->client, "/metrics", NULL, 0, &events, r);
    return r->scrape.next;
}

void replay_scrape_warn(struct replay *r) {
    r->scrape.failed += r->scrape.exchange != NULL;
    if (r->scrape.failed > 0)
        run_warn(r->run, "%u %s at the server's metrics failed or had no answer%s",
                 r->scrape.failed, plural(r->scrape.failed, "look", "looks"),
                 r->scrape.failures >= FAILURES_GIVEN_UP ? ", the last ones in a row: given up"
                                                         : "");
    if (r->scrape.unknown > 0)
        run_warn(r->run, "%u %s at the server's metrics found no name that %s is known to have",
                 r->scrape.unknown, plural(r->scrape.unknown, "look", "looks"),
                 server_kind_name(r->probe.kind));
    if (r->scrape.too_full > 0)
        run_warn(r->run, "%u %s at the server's metrics told of a cache fuller than full: not used",
                 r->scrape.too_full, plural(r->scrape.too_full, "look", "looks"));
}

void replay_scrape_last(struct replay *r) {
    struct client_text t;
    if (!r->probe.has_metrics || r->scrape.failures >= FAILURES_GIVEN_UP ||
        r->profiling_start == INT64_MIN)
        return;
    client_fetch(r->client, "/metrics", NULL, 5, &t);
    if (t.ok && t.status == 200 && t.text)
        r->scrape.unknown += !take_sample(r, t.text, t.n, client_now());
    else
        r->scrape.failed++;
    free(t.text);
}
