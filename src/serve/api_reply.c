/* api_reply.c: writes chunks and replies. Called by api_run.c.
 * Invariant that bites: a chunk's delta is never empty text but for the role chunk, and everything
 * a whole reply holds was or would have been in some chunk: both walk the same pieces. */
#include "serve/api_reply.h"

#include "serve/json_write.h"

#include <string.h>

void api_envelope_free(struct api_envelope *v) {
    text_free(&v->head);
    text_free(&v->line);
}

void api_usage_write(struct text *out, const struct api_usage *u, bool moonshot) {
    text_puts(out, "{\"prompt_tokens\":");
    json_put_int(out, (int64_t)u->prompt_tokens);
    text_puts(out, ",\"completion_tokens\":");
    json_put_int(out, (int64_t)u->completion_tokens);
    text_puts(out, ",\"total_tokens\":");
    json_put_int(out, (int64_t)(u->prompt_tokens + u->completion_tokens));
    text_puts(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_put_int(out, (int64_t)u->cached_tokens);
    text_puts(out, "},\"completion_tokens_details\":{\"reasoning_tokens\":");
    json_put_int(out, (int64_t)u->reasoning_tokens);
    text_puts(out, "}");
    if (moonshot) {
        text_puts(out, ",\"cached_tokens\":");
        json_put_int(out, (int64_t)u->cached_tokens);
    }
    text_puts(out, "}");
}

static void put_head(struct text *out, const struct api_envelope *v, const char *object) {
    text_puts(out, v->chat ? "{\"id\":\"chatcmpl-" : "{\"id\":\"cmpl-");
    /* The id is printable ASCII but may hold quotes: escape it, without its own quotes. */
    struct text id = {0};
    json_put_string(&id, v->id, strlen(v->id));
    text_append(out, id.data + 1, id.n - 1);
    text_free(&id);
    text_puts(out, ",\"object\":\"");
    text_puts(out, object);
    text_puts(out, "\",\"created\":");
    json_put_int(out, v->created);
    text_puts(out, ",\"model\":");
    json_put_string(out, v->model, strlen(v->model));
    text_puts(out, ",\"choices\":[");
}

static const char *chunk_object(const struct api_envelope *v) {
    return v->chat ? "chat.completion.chunk" : "text_completion";
}

static void chunk_begin(struct api_envelope *v) {
    if (v->head.n == 0)
        put_head(&v->head, v, chunk_object(v));
    text_clear(&v->line);
    text_append(&v->line, v->head.data, v->head.n);
}

static void put_prompt_ids(struct text *out, const struct api_prompt *prompt) {
    text_puts(out, ",\"prompt_token_ids\":");
    json_put_ids(out, prompt->ids, prompt->n);
}

/* `running` is NULL where the chunk's usage is null, `prompt` where its ids are not told. */
static void chunk_end(struct api_envelope *v, const struct api_usage *running,
                      const struct api_prompt *prompt, event_sink *sink, void *arg) {
    text_puts(&v->line, "]");
    if (prompt)
        put_prompt_ids(&v->line, prompt);
    if (v->sampling->continuous_usage && running) {
        text_puts(&v->line, ",\"usage\":");
        api_usage_write(&v->line, running, v->moonshot_usage);
    } else if (v->sampling->include_usage) {
        text_puts(&v->line, ",\"usage\":null");
    }
    text_puts(&v->line, "}");
    sink(arg, v->line.data, v->line.n);
}

static void choice_begin(struct api_envelope *v, uint32_t index) {
    chunk_begin(v);
    text_puts(&v->line, "{\"index\":");
    json_put_int(&v->line, index);
    text_puts(&v->line, v->chat ? ",\"delta\":{" : ",\"text\":");
}

static void put_logprobs(struct api_envelope *v, struct text *out,
                         const struct logprob_prompt *prompt, const struct choice_logprob *entries,
                         size_t n) {
    text_puts(out, ",\"logprobs\":");
    if (!v->logprobs || (n == 0 && !prompt))
        text_puts(out, "null");
    else if (v->chat)
        logprobs_write_chat(out, &v->logprob_style, entries, n);
    else
        logprobs_write_completion(out, &v->logprob_style, prompt, entries, n);
}

static void put_token_ids(struct api_envelope *v, struct text *out, const int32_t *ids, size_t n) {
    if (!v->sampling->return_token_ids)
        return;
    text_puts(out, ",\"token_ids\":");
    json_put_ids(out, ids, n);
}

static struct logprob_prompt prompt_of(const struct api_prompt *p) {
    return (struct logprob_prompt){.ids = p->ids, .n = p->n, .scored = p->scored};
}

void api_event_first(struct api_envelope *v, uint32_t index, const struct api_prompt *prompt,
                     const struct api_usage *running, event_sink *sink, void *arg) {
    bool with_ids = v->sampling->return_token_ids;
    if (!v->chat && !v->echo && !with_ids)
        return;
    choice_begin(v, index);
    if (v->chat) {
        text_puts(&v->line, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null");
    } else {
        struct logprob_prompt scored = prompt_of(prompt);
        json_put_string(&v->line, v->echo && prompt->echo.data ? prompt->echo.data : "",
                        v->echo ? prompt->echo.n : 0);
        put_logprobs(v, &v->line, v->echo ? &scored : NULL, NULL, 0);
    }
    text_puts(&v->line, ",\"finish_reason\":null");
    put_token_ids(v, &v->line, NULL, 0);
    /* A chat has one prompt, a text completion one for each choice. */
    if (with_ids && !v->chat)
        put_prompt_ids(&v->line, prompt);
    text_puts(&v->line, "}");
    chunk_end(v, running, with_ids && v->chat && index == 0 ? prompt : NULL, sink, arg);
}

/* A piece as the inside of a delta object. */
static void put_delta(struct api_envelope *v, const struct choice_pieces *all,
                      const struct choice_piece *p) {
    struct text *out = &v->line;
    const char *s = all->text + p->at;
    switch (p->kind) {
    case PIECE_REASONING:
        if (v->reasoning & REASONING_CONTENT) {
            text_puts(out, "\"reasoning_content\":");
            json_put_string(out, s, p->n);
        }
        if (v->reasoning & REASONING_SHORT) {
            text_puts(out, v->reasoning & REASONING_CONTENT ? ",\"reasoning\":" : "\"reasoning\":");
            json_put_string(out, s, p->n);
        }
        return;
    case PIECE_CONTENT:
        text_puts(out, "\"content\":");
        json_put_string(out, s, p->n);
        return;
    case PIECE_CALL_BEGIN:
        text_puts(out, "\"tool_calls\":[{\"index\":");
        json_put_int(out, p->call);
        text_puts(out, ",\"id\":");
        json_put_string(out, s, p->n);
        text_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_string(out, all->text + p->name_at, strlen(all->text + p->name_at));
        text_puts(out, ",\"arguments\":\"\"}}]");
        return;
    case PIECE_CALL_ARGS:
        text_puts(out, "\"tool_calls\":[{\"index\":");
        json_put_int(out, p->call);
        text_puts(out, ",\"function\":{\"arguments\":");
        json_put_string(out, s, p->n);
        text_puts(out, "}}]");
        return;
    }
}

void api_event_step(struct api_envelope *v, uint32_t index, struct api_choice *choice,
                    const struct api_usage *running, event_sink *sink, void *arg) {
    struct choice_pieces all = api_choice_pieces(choice);
    size_t last_content = all.n, last_shown = all.n;
    for (size_t i = 0; i < all.n; i++) {
        if (v->hide_reasoning && all.piece[i].kind == PIECE_REASONING)
            continue;
        last_shown = i;
        if (all.piece[i].kind == PIECE_CONTENT)
            last_content = i;
    }
    if (last_shown == all.n)
        return; /* ids and logprobs wait for text, at the latest for the last chunk */
    bool entries_sent = last_content < all.n;
    for (size_t i = 0; i <= last_shown; i++) {
        const struct choice_piece *p = &all.piece[i];
        if (v->hide_reasoning && p->kind == PIECE_REASONING)
            continue;
        choice_begin(v, index);
        if (v->chat) {
            put_delta(v, &all, p);
            text_puts(&v->line, "}");
        } else {
            json_put_string(&v->line, all.text + p->at, p->n);
        }
        put_logprobs(v, &v->line, NULL, all.logprobs, i == last_content ? all.n_logprobs : 0);
        text_puts(&v->line, ",\"finish_reason\":null");
        put_token_ids(v, &v->line, all.ids, i == last_shown ? all.n_ids : 0);
        text_puts(&v->line, "}");
        chunk_end(v, running, NULL, sink, arg);
    }
    api_choice_taken(choice, entries_sent);
}

static void put_end(struct text *out, const struct api_choice *choice) {
    size_t n = 0;
    const char *stop = api_choice_stop_string(choice, &n);
    text_puts(out, ",\"finish_reason\":\"");
    text_puts(out, api_choice_finish_reason(choice));
    text_puts(out, "\",\"stop_reason\":");
    if (stop)
        json_put_string(out, stop, n);
    else if (api_choice_stop_id(choice) >= 0)
        json_put_int(out, api_choice_stop_id(choice));
    else
        text_puts(out, "null");
}

void api_event_finish(struct api_envelope *v, uint32_t index, struct api_choice *choice,
                      const struct api_usage *running, event_sink *sink, void *arg) {
    struct choice_pieces all = api_choice_pieces(choice);
    choice_begin(v, index);
    text_puts(&v->line, v->chat ? "}" : "\"\"");
    put_logprobs(v, &v->line, NULL, all.logprobs, all.n_logprobs);
    put_end(&v->line, choice);
    put_token_ids(v, &v->line, all.ids, all.n_ids);
    text_puts(&v->line, "}");
    chunk_end(v, running, NULL, sink, arg);
    api_choice_taken(choice, true);
}

void api_event_usage(struct api_envelope *v, const struct api_usage *usage, event_sink *sink,
                     void *arg) {
    chunk_begin(v);
    text_puts(&v->line, "],\"usage\":");
    api_usage_write(&v->line, usage, v->moonshot_usage);
    text_puts(&v->line, "}");
    sink(arg, v->line.data, v->line.n);
}

/* All text of one kind, content or reasoning. */
static size_t joined(const struct choice_pieces *all, enum piece_kind kind, struct text *out) {
    text_clear(out);
    for (size_t i = 0; i < all->n; i++)
        if (all->piece[i].kind == kind)
            text_append(out, all->text + all->piece[i].at, all->piece[i].n);
    return out->n;
}

/* A call's arguments lie between its begin and the next one's (a call that is open blocks those
 * behind it), so the pieces are walked twice, however many calls there are. */
static void put_calls(const struct choice_pieces *all, struct text *out) {
    struct text arguments = {0};
    uint32_t calls = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct choice_piece *p = &all->piece[i];
        if (p->kind != PIECE_CALL_BEGIN)
            continue;
        text_puts(out, calls++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        json_put_string(out, all->text + p->at, p->n);
        text_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_string(out, all->text + p->name_at, strlen(all->text + p->name_at));
        text_puts(out, ",\"arguments\":");
        text_clear(&arguments);
        for (const struct choice_piece *a = p + 1;
             a < all->piece + all->n && a->kind != PIECE_CALL_BEGIN; a++)
            if (a->kind == PIECE_CALL_ARGS)
                text_append(&arguments, all->text + a->at, a->n);
        json_put_string(out, arguments.data ? arguments.data : "", arguments.n);
        text_puts(out, "}}");
    }
    if (calls)
        text_puts(out, "]");
    text_free(&arguments);
}

static void put_message(struct api_envelope *v, const struct api_choice *choice,
                        const struct choice_pieces *all, struct text *out) {
    struct text part = {0};
    text_puts(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (joined(all, PIECE_CONTENT, &part) || !api_choice_content_is_null(choice))
        json_put_string(out, part.data ? part.data : "", part.n);
    else
        text_puts(out, "null");
    if (!v->hide_reasoning && joined(all, PIECE_REASONING, &part)) {
        if (v->reasoning & REASONING_CONTENT) {
            text_puts(out, ",\"reasoning_content\":");
            json_put_string(out, part.data, part.n);
        }
        if (v->reasoning & REASONING_SHORT) {
            text_puts(out, ",\"reasoning\":");
            json_put_string(out, part.data, part.n);
        }
    }
    put_calls(all, out);
    text_puts(out, ",\"refusal\":null}");
    text_free(&part);
}

static void put_choice(struct api_envelope *v, uint32_t index, struct api_choice *choice,
                       const struct api_prompt *prompt, bool first_of_prompt, struct text *out) {
    struct choice_pieces all = api_choice_pieces(choice);
    struct logprob_prompt scored = prompt_of(prompt);
    text_puts(out, "{\"index\":");
    json_put_int(out, index);
    if (v->chat) {
        put_message(v, choice, &all, out);
    } else {
        struct text whole = {0};
        if (v->echo)
            text_append(&whole, prompt->echo.data ? prompt->echo.data : "", prompt->echo.n);
        for (size_t i = 0; i < all.n; i++)
            text_append(&whole, all.text + all.piece[i].at, all.piece[i].n);
        text_puts(out, ",\"text\":");
        json_put_string(out, whole.data ? whole.data : "", whole.n);
        text_free(&whole);
    }
    put_logprobs(v, out, v->echo ? &scored : NULL, all.logprobs, all.n_logprobs);
    put_end(out, choice);
    put_token_ids(v, out, all.ids, all.n_ids);
    if (!v->chat && v->sampling->return_token_ids)
        put_prompt_ids(out, prompt);
    if (!v->chat && v->sampling->params.prompt_logprobs >= 0) {
        text_puts(out, ",\"prompt_logprobs\":");
        if (first_of_prompt)
            logprobs_write_prompt(out, &v->prompt_style, &scored);
        else
            text_puts(out, "null");
    }
    text_puts(out, "}");
}

static bool too_long(const struct api_envelope *v, const struct text *out) {
    return v->most_bytes && out->n > v->most_bytes;
}

bool api_reply_write(struct api_envelope *v, struct api_choice *const *choices, size_t n,
                     const struct api_prompt *prompts, uint32_t choices_per_prompt,
                     const struct api_usage *usage, struct text *out) {
    put_head(out, v, v->chat ? "chat.completion" : "text_completion");
    for (size_t i = 0; i < n && !too_long(v, out); i++) {
        if (i)
            text_puts(out, ",");
        put_choice(v, (uint32_t)i, choices[i], &prompts[i / choices_per_prompt],
                   i % choices_per_prompt == 0, out);
    }
    text_puts(out, "],\"usage\":");
    api_usage_write(out, usage, v->moonshot_usage);
    text_puts(out, ",\"system_fingerprint\":null,\"service_tier\":null");
    if (v->chat && v->sampling->return_token_ids)
        put_prompt_ids(out, &prompts[0]);
    if (v->chat && v->sampling->params.prompt_logprobs >= 0) {
        struct logprob_prompt scored = prompt_of(&prompts[0]);
        text_puts(out, ",\"prompt_logprobs\":");
        logprobs_write_prompt(out, &v->prompt_style, &scored);
    }
    text_puts(out, "}");
    return !too_long(v, out);
}
