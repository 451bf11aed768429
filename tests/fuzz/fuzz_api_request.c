/* fuzz_api_request.c: any bytes as the body of a chat or text completion. The first byte chooses
 * endpoint and use. Holds that a refusal is a 400 or 501 with a sentence in valid UTF-8, that a
 * request which passes has every number in its range, and that a chat which passes can be rendered
 * or is refused by the renderer with a field. What passed is then run through a choice, whose
 * chunks must be JSON on one line. */
#include "tests/text/byte_tokenizer.h"

#include "serve/api_reply.h"
#include "serve/chat_request.h"
#include "serve/completion_request.h"
#include "text/utf8.h"

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARY = 320 };

static struct tokenizer *tokenizer;
static struct chat *chat;
static struct api_limits limits;

static void set_up(void) {
    static const char *const specials[] = {"[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>",
                                           "<|sep|>"};
    struct byte_special s[5];
    for (int i = 0; i < 5; i++)
        s[i] = (struct byte_special){specials[i], BYTE_RANKS + i, true};
    tokenizer = byte_tokenizer(s, 5, VOCABULARY);
    weir_status st = chat_open(CHAT_K3, tokenizer, &chat, NULL);
    WEIR_ASSERT(st == WEIR_OK);
    limits = (struct api_limits){.vocab = VOCABULARY,
                                 .max_model_len = 4096,
                                 .max_n = 16,
                                 .null_column = true,
                                 .temperature = 1,
                                 .top_p = 1,
                                 .tokenizer = tokenizer};
}

static void check_refusal(const struct api_error *e) {
    WEIR_ASSERT(e->status == 400 || e->status == 501);
    WEIR_ASSERT(e->message[0] && utf8_valid(e->message, strlen(e->message)));
    WEIR_ASSERT(utf8_valid(e->param, strlen(e->param)));
}

static void check_ids(const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        WEIR_ASSERT(ids[i] >= 0 && ids[i] < VOCABULARY);
}

static void check_sampling(const struct api_sampling *s) {
    const weir_params *p = &s->params;
    WEIR_ASSERT(p->temperature >= 0 && p->temperature <= 2);
    WEIR_ASSERT(p->top_p > 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1);
    WEIR_ASSERT(p->top_k >= -1 && p->top_k <= VOCABULARY);
    WEIR_ASSERT(p->repetition_penalty > 0 && isfinite(p->repetition_penalty));
    WEIR_ASSERT(s->n >= 1 && s->n <= 16 && s->n_stops <= API_MAX_STOPS);
    WEIR_ASSERT(p->logprobs >= -1 && p->logprobs <= WEIR_MAX_LOGPROBS);
    check_ids(p->stop_ids, p->n_stop_ids);
    check_ids(p->allowed_ids, p->n_allowed_ids);
    check_ids(p->scripted_ids, p->n_scripted_ids);
    for (size_t i = 0; i < p->n_bias; i++)
        WEIR_ASSERT(p->bias[i].id >= 0 && p->bias[i].id < VOCABULARY && isfinite(p->bias[i].value));
    for (size_t i = 0; i < p->n_bad_words; i++) {
        WEIR_ASSERT(p->bad_word_lengths[i] > 0);
        check_ids(p->bad_words[i], p->bad_word_lengths[i]);
    }
}

static void check_event(void *arg, const char *json, size_t n) {
    WEIR_ASSERT(!memchr(json, '\n', n));
    /* Not jansson, which knows no NUL in the keys of top_logprobs. */
    WEIR_ASSERT(utf8_valid(json, n) && jsontext_value_end(json, n, 0) == n);
}

/* The script, or the bytes of the body, as the model's output. */
static void run_choice(const struct api_sampling *s, const struct chat_request *r,
                       const uint8_t *data, size_t size) {
    struct choice_options o = {.tokenizer = tokenizer, .sampling = s, .logprobs = true};
    if (r) {
        o.chat = chat;
        o.parser = (struct chat_parser_options){
            .thinking = r->options.thinking, .tools = r->parse_calls, .one_call = r->one_call};
    }
    struct api_envelope v = {.chat = r != NULL,
                             .id = s->request_id ? s->request_id : "i",
                             .model = "m",
                             .sampling = s,
                             .logprob_style = {.tokenizer = tokenizer, .top = 1},
                             .logprobs = true,
                             .reasoning = REASONING_CONTENT};
    struct api_prompt prompt = {0};
    struct api_usage usage = {0};
    struct api_choice *choice = api_choice_new(&o);
    size_t n = s->params.n_scripted_ids ? s->params.n_scripted_ids : size < 300 ? size : 300;
    api_event_first(&v, 0, &prompt, &usage, check_event, NULL);
    for (size_t i = 0; i < n; i++) {
        weir_token t = {.logprob = -INFINITY, .n_top = 1};
        t.id = s->params.n_scripted_ids ? s->params.scripted_ids[i] : data[i];
        t.top[0] = (weir_logprob){t.id, -1};
        if (!api_choice_feed(choice, &t, false))
            break;
        api_event_step(&v, 0, choice, &usage, check_event, NULL);
    }
    api_choice_end(choice, WEIR_FINISH_LENGTH, -1);
    api_event_step(&v, 0, choice, &usage, check_event, NULL);
    api_event_finish(&v, 0, choice, &usage, check_event, NULL);
    api_choice_free(choice);
    api_envelope_free(&v);
}

static void try_chat(const char *body, size_t n, enum chat_request_use use, const uint8_t *data) {
    struct chat_request r = {0};
    struct api_error e = {0};
    if (!chat_request_parse(body, n, use, &limits, true, &r, &e)) {
        check_refusal(&e);
    } else {
        struct ids ids = {0};
        weir_error err = {0};
        weir_status st = chat_render(chat, r.messages, &r.options, &ids, NULL, &err);
        if (st != WEIR_OK)
            WEIR_ASSERT((st == WEIR_BAD_VALUE || st == WEIR_UNSUPPORTED) && err.where[0]);
        check_ids(ids.data, ids.n);
        if (use == CHAT_FOR_GENERATION) {
            check_sampling(&r.sampling);
            run_choice(&r.sampling, &r, data, n);
        }
        ids_free(&ids);
    }
    chat_request_free(&r);
}

static void try_completion(const char *body, size_t n, const uint8_t *data) {
    struct completion_request r = {0};
    struct api_error e = {0};
    if (!completion_request_parse(body, n, &limits, &r, &e)) {
        check_refusal(&e);
    } else {
        WEIR_ASSERT(r.n_prompts >= 1 && r.n_prompts * r.sampling.n <= API_MAX_PROMPTS);
        check_ids(r.prompt_ids.data, r.prompt_ids.n);
        check_sampling(&r.sampling);
        run_choice(&r.sampling, NULL, data, n);
    }
    completion_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!tokenizer)
        set_up();
    if (size == 0)
        return 0;
    /* A copy without a NUL behind it, so that reading past the end is seen. */
    size_t n = size - 1;
    char *body = malloc(n ? n : 1);
    WEIR_ASSERT(body);
    memcpy(body, data + 1, n);
    switch (data[0] % 3) {
    case 0: try_chat(body, n, CHAT_FOR_GENERATION, data + 1); break;
    case 1: try_chat(body, n, CHAT_FOR_RENDERING, data + 1); break;
    case 2: try_completion(body, n, data + 1); break;
    }
    free(body);
    return 0;
}
