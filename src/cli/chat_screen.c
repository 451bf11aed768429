/* chat_screen.c: the answer's side of `weir chat`. */
#include "cli/chat_screen.h"

#include "base/plural.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void chat_screen_open(struct chat_screen *s) {
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    *s = (struct chat_screen){.on_terminal = isatty(STDOUT_FILENO)};
    s->has_colour = s->on_terminal && term && strcmp(term, "dumb") && !(plain && *plain);
}

static void style(const struct chat_screen *s, const char *code) {
    if (s->has_colour)
        fputs(code, stdout);
}

/* Prints text; on a terminal every control character but line break and tab becomes '?', those of
 * the second block (two bytes in UTF-8) included. */
static void put(struct chat_screen *s, const char *text, size_t n) {
    if (n == 0)
        return;
    s->ends_line = text[n - 1] == '\n';
    if (!s->on_terminal) {
        fwrite(text, 1, n, stdout);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127) {
            putchar('?');
        } else if (c == 0xC2 && i + 1 < n && (unsigned char)text[i + 1] < 0xA0) {
            putchar('?');
            i++;
        } else {
            putchar(c);
        }
    }
}

void chat_screen_begin(struct chat_screen *s) {
    s->in_thinking = s->any = s->ends_line = s->in_word = false;
    s->words = 0;
}

static void count_words(struct chat_screen *s, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool blank = strchr(" \t\n", text[i]) != NULL;
        s->words += !blank && !s->in_word;
        s->in_word = !blank;
    }
}

void chat_screen_reasoning(void *screen, const char *text, size_t n) {
    struct chat_screen *s = screen;
    count_words(s, text, n);
    if (!s->on_terminal || s->thinking == CHAT_THINKING_HIDE)
        return;
    s->in_thinking = true;
    style(s, "\x1b[2m");
    if (s->thinking == CHAT_THINKING_SHOW)
        put(s, text, n);
    else if (s->has_colour)
        printf("\rthinking ... %zu %s", s->words, plural(s->words, "word", "words"));
    style(s, "\x1b[0m");
    fflush(stdout);
}

static void leave_thinking(struct chat_screen *s) {
    if (!s->in_thinking)
        return;
    s->in_thinking = false;
    if (s->thinking == CHAT_THINKING_SHOW) {
        fputs(s->ends_line ? "\n" : "\n\n", stdout);
    } else {
        style(s, "\r\x1b[2m");
        printf("thought in %zu %s", s->words, plural(s->words, "word", "words"));
        style(s, "\x1b[0m\x1b[K");
        putchar('\n');
    }
    s->ends_line = true;
}

void chat_screen_content(void *screen, const char *text, size_t n) {
    struct chat_screen *s = screen;
    leave_thinking(s);
    s->any = true;
    put(s, text, n);
    fflush(stdout);
}

void chat_screen_end(struct chat_screen *s) {
    leave_thinking(s);
    if (s->any && !s->ends_line)
        putchar('\n');
    fflush(stdout);
}

void chat_screen_note(struct chat_screen *s, const char *format, ...) {
    if (!s->on_terminal)
        return;
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    style(s, "\x1b[2m");
    put(s, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    style(s, "\x1b[0m");
    putchar('\n');
    fflush(stdout);
}
