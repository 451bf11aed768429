/* chat_lines.c: the user's side of `weir chat`. Editing is libedit's; its own handling of signals
 * is off, because an interrupted read must drop the line and not end the program: the character
 * reader below returns as soon as the SIGINT handler has set the flag. */
#include "cli/chat_lines.h"

#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

enum { HISTORY_LINES = 1000, PASTE_MS = 5 };

struct chat_lines {
    volatile sig_atomic_t *interrupted;
    bool on_terminal, goes_on; /* goes_on: this line continues a message */
    EditLine *edit;
    History *history;
    char history_path[PATH_MAX];
    char *line; /* of getline */
    size_t capacity;
    char *held; /* a line read by el_gets, copied */
};

static char *prompt(EditLine *edit) {
    static char first[] = "> ", more[] = ". ";
    struct chat_lines *l;
    el_get(edit, EL_CLIENTDATA, &l);
    return l->goes_on ? more : first;
}

/* One character of the terminal, in the locale's encoding. */
static int read_character(EditLine *edit, wchar_t *out) {
    struct chat_lines *l;
    el_get(edit, EL_CLIENTDATA, &l);
    mbstate_t state = {0};
    for (int tries = 0; tries < 8;) {
        char c;
        ssize_t n = read(STDIN_FILENO, &c, 1);
        if (n < 0 && errno == EINTR) {
            if (*l->interrupted)
                return -1;
            continue;
        }
        if (n <= 0)
            return (int)n;
        size_t taken = mbrtowc(out, &c, 1, &state);
        if (taken == (size_t)-1)
            memset(&state, 0, sizeof state); /* not of this encoding: left out */
        else if (taken != (size_t)-2)
            return 1;
        tries++;
    }
    return -1;
}

/* $XDG_STATE_HOME/weir/history, by default below ~/.local/state. Empty when there is no home. */
static void find_history(char *path, size_t cap) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char dir[PATH_MAX];
    path[0] = 0;
    int n = state && *state ? snprintf(dir, sizeof dir, "%s/weir", state)
            : home && *home ? snprintf(dir, sizeof dir, "%s/.local/state/weir", home)
                            : -1;
    if (n < 0 || (size_t)n >= sizeof dir || (size_t)n + 9 > cap)
        return;
    for (char *p = dir + 1; *p; p++)
        if (*p == '/') {
            *p = 0;
            mkdir(dir, 0700);
            *p = '/';
        }
    if (mkdir(dir, 0700) == 0 || errno == EEXIST)
        snprintf(path, cap, "%.*s/history", n, dir);
}

static void open_editor(struct chat_lines *l) {
    HistEvent event;
    l->edit = el_init("weir", stdin, stdout, stderr);
    if (!l->edit)
        return;
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT, prompt);
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_SIGNAL, 0);
    el_set(l->edit, EL_GETCFN, read_character);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(l->edit, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
    el_set(l->edit, EL_BIND, "\\e[H", "ed-move-to-beg", NULL);
    el_set(l->edit, EL_BIND, "\\e[F", "ed-move-to-end", NULL);
    l->history = history_init();
    if (l->history) {
        history(l->history, &event, H_SETSIZE, HISTORY_LINES);
        history(l->history, &event, H_SETUNIQUE, 1);
        find_history(l->history_path, sizeof l->history_path);
        if (l->history_path[0])
            history(l->history, &event, H_LOAD, l->history_path);
        el_set(l->edit, EL_HIST, history, l->history);
    }
}

struct chat_lines *chat_lines_open(volatile sig_atomic_t *interrupted) {
    struct chat_lines *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->interrupted = interrupted;
    l->on_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (l->on_terminal)
        open_editor(l);
    return l;
}

void chat_lines_close(struct chat_lines *l) {
    if (!l)
        return;
    if (l->history) {
        HistEvent event;
        mode_t mask = umask(077); /* what was said is the user's own */
        if (l->history_path[0])
            history(l->history, &event, H_SAVE, l->history_path);
        umask(mask);
        history_end(l->history);
    }
    if (l->edit)
        el_end(l->edit);
    free(l->line);
    free(l->held);
    free(l);
}

bool chat_lines_on_terminal(const struct chat_lines *l) {
    return l->on_terminal;
}

/* One line without its break, valid until the next call; NULL at the end or on Ctrl-C. */
static char *next_line(struct chat_lines *l) {
    if (!l->edit) {
        ssize_t n = getline(&l->line, &l->capacity, stdin);
        if (n < 0)
            return NULL;
        if (n && l->line[n - 1] == '\n')
            l->line[n - 1] = 0;
        return l->line;
    }
    int n = 0;
    const char *text = el_gets(l->edit, &n);
    if (!text || n <= 0)
        return NULL;
    free(l->held);
    l->held = strdup(text);
    if (l->held)
        l->held[strcspn(l->held, "\n")] = 0;
    return l->held;
}

static bool more_is_here(const struct chat_lines *l) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return l->edit && poll(&p, 1, PASTE_MS) == 1 && (p.revents & POLLIN);
}

struct message {
    char *text;
    size_t n;
};

static void add_line(struct message *m, const char *line, size_t n, bool is_first) {
    char *grown = realloc(m->text, m->n + n + 2);
    if (!grown)
        abort();
    if (!is_first)
        grown[m->n++] = '\n';
    memcpy(grown + m->n, line, n);
    m->n += n;
    grown[m->n] = 0;
    m->text = grown;
}

static void remember(struct chat_lines *l, const char *text) {
    HistEvent event;
    if (l->history && *text && !strchr(text, '\n'))
        history(l->history, &event, H_ENTER, text);
}

char *chat_lines_read(struct chat_lines *l) {
    struct message m = {0};
    bool block = false, first = true;
    l->goes_on = false;
    *l->interrupted = 0;
    for (;;) {
        char *line = next_line(l);
        if (!line) {
            if (*l->interrupted) {
                free(m.text);
                fputs("\n", stdout);
                return strdup("");
            }
            return m.text; /* what stands before the end of input still counts */
        }
        size_t n = strlen(line);
        if (!strcmp(line, "\"\"\"")) {
            if (block)
                break;
            block = l->goes_on = true;
            continue;
        }
        bool continues = !block && n && line[n - 1] == '\\';
        add_line(&m, line, n - continues, first);
        first = false;
        if (!block && !continues && !more_is_here(l))
            break;
        l->goes_on = true;
    }
    if (!m.text)
        m.text = strdup("");
    remember(l, m.text);
    return m.text;
}
