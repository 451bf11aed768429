/* read_mooncake.c: one request a line:
 *   {"input_length" or "text_input", "output_length", "hash_ids", "timestamp" ms or "delay" ms,
 *    "session_id"}
 * hash_ids: one number for each block of the prompt, the partial last one included, shared by the
 * whole file. Lines of one session_id are its turns; a line without is a session of its own.
 * Called by read.c. */
#include "trace/builder.h"

#include "base/plural.h"

#define MILLISECOND_NS 1e6

/* A turn that only says how long it waits starts that long after the one before. */
static int64_t start_of(const struct builder *b, const struct trace_session *s, uint32_t session,
                        int64_t timestamp, int64_t delay) {
    if (timestamp >= 0)
        return timestamp;
    int64_t before = 0;
    for (uint32_t i = b->t.n_requests; s->n_requests && i-- > 0;)
        if (b->t.requests[i].session == session) {
            before = b->t.requests[i].t;
            break;
        }
    return before + (delay > 0 ? delay : 0);
}

static void check_fields(struct builder *b, struct json_fields *f, const struct trace_request *r,
                         size_t n_ids, bool has_ids) {
    const json_t *text = json_field(f, "text_input");
    if (f->status)
        return;
    if (r->in > 0 && text)
        json_field_refuse(f, "text_input", NULL, WEIR_BAD_FILE,
                          "must not stand beside input_length");
    else if (r->in == 0 && !text)
        json_field_refuse(f, "input_length", NULL, WEIR_BAD_FILE,
                          json_object_get(f->first, "input_length")
                              ? "is null, and text_input is missing"
                              : "is missing, and so is text_input");
    else if (text && has_ids)
        json_field_refuse(f, "hash_ids", NULL, WEIR_BAD_FILE, "needs input_length");
    else if (json_field(f, "timestamp") && json_field(f, "delay"))
        json_field_refuse(f, "delay", NULL, WEIR_BAD_FILE, "must not stand beside timestamp");
    uint64_t blocks = r->in / b->block_tokens + (r->in % b->block_tokens != 0);
    if (has_ids && n_ids != blocks)
        json_field_refuse(
            f, "hash_ids", NULL, WEIR_BAD_FILE,
            "has %zu %s, but %" PRIu64 " %s in blocks of %" PRIu32 " %s %" PRIu64 " %s", n_ids,
            plural(n_ids, "number", "numbers"), r->in, plural(r->in, "token", "tokens"),
            b->block_tokens, plural(r->in, "makes", "make"), blocks,
            plural(blocks, "block", "blocks"));
}

weir_status read_mooncake_object(struct builder *b, const json_t *object) {
    struct json_fields f = builder_fields(b, object, "");
    struct trace_request r = {
        .agent = -1, .api_time = TRACE_ABSENT, .think_time = TRACE_ABSENT, .ttft = TRACE_ABSENT};
    size_t n;
    r.in = builder_count(&f, "input_length", false, 1);
    r.out = builder_count(&f, "output_length", false, 0);
    r.has_out = json_field(&f, "output_length");
    r.n_texts = json_field_string(&f, "text_input", false) != NULL;
    int64_t timestamp = builder_time(&f, "timestamp", false, MILLISECOND_NS);
    r.delay = builder_time(&f, "delay", false, MILLISECOND_NS);
    const char *id = json_field_string(&f, "session_id", false);
    uint64_t *ids = builder_numbers(&f, "hash_ids", false, &n);
    check_fields(b, &f, &r, n, json_field(&f, "hash_ids"));
    weir_status s = f.status;
    struct trace_session *session;
    if (!s)
        s = builder_turn_session(b, id, &session);
    if (!s) {
        session->block_tokens = b->block_tokens;
        session->space = builder_space(b, true);
        r.session = (uint32_t)(session - b->t.sessions);
        r.t = start_of(b, session, r.session, timestamp, r.delay);
        r.n_blocks = (uint32_t)n;
        if (timestamp >= 0)
            builder_order(b, "timestamp", timestamp);
        s = builder_request(
            b, &r, &(struct builder_extra){.ids = ids, .texts = json_field(&f, "text_input")});
    }
    free(ids);
    return s;
}
