/* cmd_chat.c: `weir chat`: a conversation in the terminal. History and settings are those of the
 * API: messages as they are sent back, settings as fields of the request. Invariant that bites:
 * SIGINT never ends the program; it drops the typed line, or stops the answer. */
#include "cli/chat_backend.h"

#include "base/plural.h"
#include "cli/chat_lines.h"
#include "cli/chat_screen.h"
#include "cli/command.h"

#include <locale.h>
#include <string.h>
#include <strings.h>

struct chat_args {
    struct engine_args engine;
    char *url, *key, *ca, *name, *system;
    int thinking;
    bool stats;
    struct option_list set;
};

#define AT(field) offsetof(struct chat_args, field)

static const struct option_spec who_options[] = {
    {.name = "url",
     .value = "URL",
     .type = OPTION_TEXT,
     .offset = AT(url),
     .help = "Talk with the server there (http://HOST:PORT or https://HOST) instead of loading a "
             "model."},
    {.name = "api-key",
     .value = "K",
     .type = OPTION_TEXT,
     .offset = AT(key),
     .help = "Key to send. Better given in the environment, where others do not see it."},
    {.name = "tls-ca",
     .value = "F",
     .type = OPTION_TEXT,
     .offset = AT(ca),
     .help = "Trust the certificates of this PEM file instead of the system's."},
    {.name = "served-model-name",
     .value = "S",
     .type = OPTION_TEXT,
     .offset = AT(name),
     .help = "Which of the server's models; the first one without it."},
};

static const struct option_spec talk_options[] = {
    {.name = "system",
     .value = "TEXT",
     .type = OPTION_TEXT,
     .offset = AT(system),
     .help = "System message."},
    {.name = "set",
     .value = "NAME=VALUE",
     .type = OPTION_LIST,
     .offset = AT(set),
     .help = "A field of every request, such as temperature=0.7, max_tokens=500, seed=1 or "
             "reasoning_effort=low; may be given several times."},
    {.name = "thinking",
     .value = "T",
     .type = OPTION_CHOICE,
     .offset = AT(thinking),
     .choices = "show|fold|hide",
     .fallback = "show",
     .help = "How thinking is shown on a terminal: dimmed, folded into one line, or not."},
    {.name = "stats",
     .type = OPTION_FLAG,
     .offset = AT(stats),
     .help = "Show tokens and times below each answer."},
};

struct session {
    struct chat_backend *backend;
    struct chat_screen screen;
    json_t *messages, *settings; /* messages without the system message */
    char *system;
    bool stats, leave, failed;
};

/* The only place a handler can reach. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal) {
    interrupted = 1;
}

/* "0.5" is a number, "true" a truth value, anything that is no JSON a text. */
static json_t *setting_value(const char *text) {
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    return value ? value : json_string(text);
}

static weir_status set_field(struct session *s, const char *name, const char *value,
                             weir_error *err) {
    static const char *const own[] = {"messages", "stream", "stream_options", "n"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (!strcmp(name, own[i]))
            return weir_fail(err, WEIR_BAD_VALUE, name, "is set by the conversation itself");
    json_t *v = setting_value(value);
    if (!v || json_object_set_new(s->settings, name, v) != 0)
        return weir_fail(err, WEIR_BAD_VALUE, name,
                         "neither name nor value may be other than UTF-8");
    return WEIR_OK;
}

static json_t *build_request(const struct session *s) {
    json_t *request = json_deep_copy(s->settings), *messages = json_array();
    if (s->system)
        json_array_append_new(messages,
                              json_pack("{s:s, s:s}", "role", "system", "content", s->system));
    json_array_extend(messages, s->messages);
    json_object_set_new(request, "messages", messages);
    return request;
}

static void show_calls(struct session *s, const json_t *calls) {
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *f = json_object_get(json_array_get(calls, i), "function");
        chat_screen_note(&s->screen, "calls %s(%s)", json_string_value(json_object_get(f, "name")),
                         json_string_value(json_object_get(f, "arguments")));
    }
}

static void show_stats(struct session *s, const struct chat_answer *a) {
    double rest = a->seconds - a->first_seconds;
    chat_screen_note(
        &s->screen, "%u prompt %s (%u cached), %u generated, first after %.2f s, %.0f tokens/s",
        a->prompt_tokens, plural(a->prompt_tokens, "token", "tokens"), a->cached_tokens,
        a->generated_tokens, a->first_seconds, rest > 0 ? (a->generated_tokens - 1) / rest : 0);
}

/* Answers the last message of the history. On failure that message is taken back, so that the next
 * one does not follow an unanswered one. */
static void answer(struct session *s) {
    struct chat_listener listener = {chat_screen_reasoning, chat_screen_content, &s->screen};
    struct chat_answer a = {0};
    weir_error err = {0};
    json_t *request = build_request(s);
    interrupted = 0;
    chat_screen_begin(&s->screen);
    weir_status status = chat_backend_ask(s->backend, request, &listener, &interrupted, &a, &err);
    json_decref(request);
    chat_screen_end(&s->screen);
    if (status) {
        fprintf(stderr, "weir: %s: %s\n", err.where, err.message);
        json_array_remove(s->messages, json_array_size(s->messages) - 1);
        s->failed = true;
    } else {
        json_array_append(s->messages, a.message);
        show_calls(s, json_object_get(a.message, "tool_calls"));
        if (!strcmp(a.finish, "length"))
            chat_screen_note(&s->screen, "cut at the length limit");
        if (!strcmp(a.finish, "stopped"))
            chat_screen_note(&s->screen, "stopped");
        if (s->stats)
            show_stats(s, &a);
    }
    chat_answer_free(&a);
}

static void say(struct session *s, const char *text) {
    json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", text);
    if (!message) {
        fputs("weir: the message is not UTF-8 text\n", stderr);
        s->failed = true;
        return;
    }
    json_array_append_new(s->messages, message);
    answer(s);
}

/* ------------------------------------------------------------------------------------------------
 * commands */

static void do_help(struct session *s, char *rest) {
    puts("/help             this\n"
         "/reset            forget the conversation\n"
         "/system [TEXT]    set the system message, or drop it\n"
         "/set              list the settings\n"
         "/set NAME VALUE   a field of every request: temperature 0.7, max_tokens 500,\n"
         "                  seed 1, stop \"END\", reasoning_effort low (none: no thinking)\n"
         "/unset NAME       drop it\n"
         "/thinking MODE    show, fold or hide what the model thinks\n"
         "/stats            show tokens and times, or stop it\n"
         "/retry            ask the last message again\n"
         "/save FILE        write the conversation as JSON\n"
         "/exit             leave, as Ctrl-D does\n"
         "A line ending in \\ goes on; \"\"\" starts and ends a message of several lines; a "
         "message\n"
         "that starts with a slash is written with two. Ctrl-C stops the answer.");
}

static void do_reset(struct session *s, char *rest) {
    json_array_clear(s->messages);
    chat_screen_note(&s->screen, "the conversation starts anew");
}

static void do_system(struct session *s, char *rest) {
    free(s->system);
    s->system = *rest ? strdup(rest) : NULL;
}

static void list_settings(const struct session *s) {
    json_t *value;
    const char *name;
    json_object_foreach(s->settings, name, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        printf("%s %s\n", name, text ? text : "");
        free(text);
    }
    if (s->system)
        printf("system %s\n", s->system);
}

static void do_set(struct session *s, char *rest) {
    weir_error err = {0};
    if (!*rest) {
        list_settings(s);
        return;
    }
    size_t n = strcspn(rest, " =");
    char *value = rest + n;
    if (*value) {
        *value++ = 0;
        value += strspn(value, " =");
    }
    if (!*value)
        fprintf(stderr, "weir: /set %s: needs a value\n", rest);
    else if (set_field(s, rest, value, &err))
        fprintf(stderr, "weir: %s: %s\n", err.where, err.message);
}

static void do_unset(struct session *s, char *rest) {
    if (json_object_del(s->settings, rest) != 0)
        fprintf(stderr, "weir: /unset %s: is not set\n", rest);
}

static void do_thinking(struct session *s, char *rest) {
    static const char *const name[] = {"show", "fold", "hide"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(rest, name[i])) {
            s->screen.thinking = (enum chat_thinking)i;
            return;
        }
    fprintf(stderr, "weir: /thinking %s: is not show, fold or hide\n", rest);
}

static void do_stats(struct session *s, char *rest) {
    s->stats = !s->stats;
}

static void do_retry(struct session *s, char *rest) {
    size_t n = json_array_size(s->messages);
    const char *role =
        json_string_value(json_object_get(json_array_get(s->messages, n - 1), "role"));
    if (n == 0) {
        fputs("weir: /retry: nothing was asked yet\n", stderr);
        return;
    }
    if (role && strcmp(role, "user"))
        json_array_remove(s->messages, n - 1);
    answer(s);
}

static void do_save(struct session *s, char *rest) {
    json_t *request = build_request(s);
    if (!*rest)
        fputs("weir: /save: needs a file name\n", stderr);
    else if (json_dump_file(request, rest, JSON_INDENT(2)) != 0)
        fprintf(stderr, "weir: %s: cannot be written: %m\n", rest);
    json_decref(request);
}

static void do_exit(struct session *s, char *rest) {
    s->leave = true;
}

static void obey(struct session *s, char *line) {
    static const struct {
        const char *name;
        void (*run)(struct session *s, char *rest);
    } known[] = {
        {"help", do_help},         {"reset", do_reset}, {"system", do_system}, {"set", do_set},
        {"unset", do_unset},       {"stats", do_stats}, {"retry", do_retry},   {"save", do_save},
        {"thinking", do_thinking}, {"exit", do_exit},   {"quit", do_exit},
    };
    size_t n = strcspn(line, " \n");
    char *rest = line + n + strspn(line + n, " \n");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strlen(known[i].name) == n && !strncmp(known[i].name, line, n)) {
            known[i].run(s, rest);
            return;
        }
    fprintf(stderr, "weir: /%.*s: unknown command; /help lists those there are\n", (int)n, line);
}

/* ------------------------------------------------------------------------------------------------
 * the command */

static void talk(struct session *s, struct chat_lines *lines) {
    char *line;
    while (!s->leave && (line = chat_lines_read(lines))) {
        if (line[0] == '/' && line[1] != '/')
            obey(s, line + 1);
        else if (line[strspn(line, " \t\n")])
            say(s, line + (line[0] == '/'));
        free(line);
    }
    if (!s->leave && chat_lines_on_terminal(lines))
        putchar('\n');
}

static weir_status open_backend(const struct chat_args *a, struct chat_backend **out,
                                weir_error *err) {
    if (!a->url == !a->engine.model)
        return weir_fail(err, WEIR_BAD_VALUE, "chat", "needs %s of --model and --url",
                         a->url ? "only one" : "one");
    if (a->url)
        return chat_backend_remote(a->url, a->key, a->ca, a->name, &interrupted, out, err);
    return chat_backend_local(&a->engine, out, err);
}

static weir_status apply_settings(struct session *s, const struct option_list *list,
                                  weir_error *err) {
    for (size_t i = 0; i < list->n; i++) {
        char *name = list->item[i], *equal = strchr(name, '=');
        if (!equal || equal == name || !equal[1])
            return weir_fail(err, WEIR_BAD_VALUE, "--set", "'%s' is not of the form NAME=VALUE",
                             name);
        *equal = 0;
        weir_status status = set_field(s, name, equal + 1, err);
        if (status)
            return status;
    }
    return WEIR_OK;
}

static int run_chat(void *record, weir_error *err) {
    const struct chat_args *a = record;
    struct session s = {.messages = json_array(), .settings = json_object(), .stats = a->stats};
    struct sigaction act = {.sa_handler = on_interrupt};
    struct chat_lines *lines = NULL;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    chat_screen_open(&s.screen);
    s.screen.thinking = (enum chat_thinking)a->thinking;
    s.system = a->system ? strdup(a->system) : NULL;
    weir_status status = apply_settings(&s, &a->set, err);
    if (!status)
        status = open_backend(a, &s.backend, err);
    if (!status && !(lines = chat_lines_open(&interrupted)))
        status = weir_fail(err, WEIR_NO_MEMORY, "chat", "no memory");
    if (!status) {
        sigaction(SIGINT, &act, NULL);
        if (chat_lines_on_terminal(lines))
            chat_screen_note(&s.screen, "%s; /help lists commands, Ctrl-D leaves",
                             chat_backend_name(s.backend));
        talk(&s, lines);
        chat_lines_close(lines);
    }
    chat_backend_close(s.backend);
    json_decref(s.messages);
    json_decref(s.settings);
    free(s.system);
    /* In a script a failed answer must not pass unnoticed; a person has seen it. */
    return status ? command_exit_status(err) : s.failed && !s.screen.on_terminal ? 1 : 0;
}

static const struct option_group chat_groups[] = {
    {"Model", &model_option_optional, 1, AT(engine)},
    {"Server", who_options, sizeof who_options / sizeof who_options[0], 0},
    {"Conversation", talk_options, sizeof talk_options / sizeof talk_options[0], 0},
    {"Engine, with --model", engine_options, N_ENGINE_OPTIONS, AT(engine)},
};

static const struct command_section chat_sections[] = {
    {"DESCRIPTION",
     "Talks with a model in the terminal: one loaded into this process (--model), or one behind "
     "any "
     "server with the OpenAI API (--url). Answers appear as they are generated; what the model "
     "thinks is dimmed, folded or hidden. Lines can be edited and recalled with the arrow keys. "
     "Ctrl-C stops the answer or drops the line, Ctrl-D leaves. Pasted lines are one message.\n\n"
     "A message that starts with a slash is a command; /help lists them.\n\n"
     "In a pipe each line is a message and only answers are written."},
    {"FILES", "The lines typed are kept in $XDG_STATE_HOME/weir/history, by default "
              "~/.local/state/weir/history."},
    {"EXAMPLES", "  weir chat --model models/tiny-k3\n"
                 "  weir chat --url http://127.0.0.1:8000 --set temperature=0\n"
                 "  echo 'What is the capital of Norway?' | weir chat --model models/tiny-k3"},
};

const struct command command_chat = {
    .name = "chat",
    .synopsis = "(--model DIR | --url URL) [--system TEXT] [--set NAME=VALUE] [OPTIONS]",
    .summary = "talk with a model in the terminal",
    .options = {chat_groups, sizeof chat_groups / sizeof chat_groups[0], NULL, 0, false},
    .record_bytes = sizeof(struct chat_args),
    .section = chat_sections,
    .n_sections = sizeof chat_sections / sizeof chat_sections[0],
    .run = run_chat,
};
