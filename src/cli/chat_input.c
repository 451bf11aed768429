/* chat_input.c: reads chat requests for commands. */
#include "cli/chat_input.h"

#include "base/file.h"
#include "base/rng.h"
#include "cli/io.h"

#include <string.h>

enum { REQUEST_LIMIT = 64 << 20 };

/* `[...]` becomes `{"messages":[...]}`. */
static weir_status wrap_array(char **text, size_t *n, weir_error *err) {
    static const char head[] = "{\"messages\":";
    size_t lead = strspn(*text, " \t\r\n");
    if ((*text)[lead] != '[')
        return WEIR_OK;
    char *whole = malloc(*n + sizeof head + 1);
    if (!whole)
        return weir_fail(err, WEIR_NO_MEMORY, "chat request", "no memory");
    memcpy(whole, head, sizeof head - 1);
    memcpy(whole + sizeof head - 1, *text, *n);
    *n += sizeof head - 1;
    whole[(*n)++] = '}';
    whole[*n] = 0;
    free(*text);
    *text = whole;
    return WEIR_OK;
}

weir_status chat_input_read(const char *path, const struct chat *c, const struct api_limits *limits,
                            struct chat_input *out, weir_error *err) {
    bool piped = !strcmp(path, "-");
    *out = (struct chat_input){.name = piped ? "standard input" : path};
    char *text;
    size_t n;
    weir_status status = piped ? io_read_input(REQUEST_LIMIT, &text, &n, err)
                               : file_read(path, REQUEST_LIMIT, &text, &n, err);
    if (status)
        return status;
    status = wrap_array(&text, &n, err);
    struct api_error e = {0};
    if (!status && !chat_request_parse(text, n, limits ? CHAT_FOR_GENERATION : CHAT_FOR_RENDERING,
                                       limits, chat_can_think(c), &out->request, &e))
        status = weir_fail(err, WEIR_BAD_FILE, out->name, "%s", e.message);
    free(text);
    return status;
}

weir_status chat_input_render(const struct chat_input *in, const struct chat *c, struct ids *ids,
                              struct text *text, weir_error *err) {
    weir_error why = {0};
    weir_status status =
        chat_render(c, in->request.messages, &in->request.options, ids, text, &why);
    if (status)
        return weir_fail(err, WEIR_BAD_FILE, in->name, "%s: %s", why.where, why.message);
    return WEIR_OK;
}

struct chat_parser_options chat_input_parser(const struct chat_input *in) {
    return (struct chat_parser_options){.thinking = in->request.options.thinking,
                                        .tools = in->request.parse_calls,
                                        .one_call = in->request.one_call,
                                        .id_seed = rng_entropy()};
}

void chat_input_free(struct chat_input *in) {
    chat_request_free(&in->request);
}
