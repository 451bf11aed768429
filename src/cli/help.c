/* help.c: prints the option tables for people: --help on the terminal, and the man pages in mdoc,
 * which the build runs `weir help --man` for. One table, so that neither can fall behind. */
#include "cli/command.h"
#include "cli/version.h"

#include <ctype.h>
#include <string.h>

enum { HELP_COLUMN = 30, HELP_WIDTH = 92 };

/* Prints text filled to the width, every line but the first indented; `at` is where the cursor is.
 */
static void fill(FILE *out, const char *text, int at, int indent) {
    const char *p = text;
    while (*p) {
        size_t len = strcspn(p, " ");
        if (at > indent && at + 1 + (int)len > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fwrite(p, 1, len, out);
        at += (int)len;
        p += len;
        while (*p == ' ')
            p++;
    }
    fputc('\n', out);
}

static void print_value(FILE *out, const struct option_spec *s) {
    if (s->type == OPTION_CHOICE)
        fputs(s->choices, out);
    else if (s->value)
        fputs(s->value, out);
}

/* What of a known option this build lacks: all of it, or some of its values. Empty: nothing. */
static const char *lacking(const struct option_spec *s, char *out, size_t cap) {
    size_t n = 0;
    out[0] = 0;
    if (!s->refusal)
        return out;
    if (s->type != OPTION_CHOICE) {
        snprintf(out, cap, "(not in this build)");
        return out;
    }
    for (const char *c = s->choices; *c;) {
        size_t len = strcspn(c, "|");
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)len, c);
        if (!option_is_offered(s, name) && n < cap)
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "(", name);
        c += len + (c[len] == '|');
    }
    if (n && n < cap)
        snprintf(out + n, cap - n, ": not in this build)");
    return out;
}

static void help_option(FILE *out, const struct option_spec *s) {
    char left[160], text[700], lack[128];
    int n = snprintf(left, sizeof left, "  --%s%s%s%s%s", s->name, s->alias ? ", --" : "",
                     s->alias ? s->alias : "", s->value ? " " : "",
                     s->type == OPTION_CHOICE ? s->choices
                     : s->value               ? s->value
                                              : "");
    lacking(s, lack, sizeof lack);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", s->help, lack[0] ? " " : "", lack,
             s->required ? " Required." : "",
             s->fallback && s->type != OPTION_FLAG ? " Default: " : "",
             s->fallback && s->type != OPTION_FLAG ? s->fallback : "",
             s->fallback && s->type != OPTION_FLAG ? "." : "");
    fputs(left, out);
    if (n + 2 > HELP_COLUMN) {
        fprintf(out, "\n%*s", HELP_COLUMN, "");
    } else {
        fprintf(out, "%*s", HELP_COLUMN - n, "");
    }
    fill(out, text, HELP_COLUMN, HELP_COLUMN);
}

static const struct option_spec config_row = {
    .name = "config",
    .value = "FILE.yaml",
    .type = OPTION_TEXT,
    .help = "Read options from a YAML file: one 'name: value' a line, names without the dashes.",
};
static const struct option_spec help_row = {
    .name = "help",
    .type = OPTION_FLAG,
    .help = "Print this help.",
};

void help_print_command(FILE *out, const struct command *c) {
    fprintf(out, "usage: weir %s %s\n\n", c->name, c->synopsis);
    char summary[160];
    snprintf(summary, sizeof summary, "%c%s.", toupper((unsigned char)c->summary[0]),
             c->summary + 1);
    fill(out, summary, 0, 0);
    for (size_t g = 0; g < c->options.n; g++) {
        const struct option_group *group = &c->options.group[g];
        fprintf(out, "\n%s\n", group->title);
        for (size_t i = 0; i < group->n; i++)
            help_option(out, &group->option[i]);
    }
    fputs("\nGeneral\n", out);
    help_option(out, &config_row);
    help_option(out, &help_row);
    if (c->options.n)
        fputs("\nEvery option can also be given as WEIR_OPTION_NAME in the environment.\n", out);
}

void help_print_all(FILE *out) {
    fputs("usage: weir COMMAND [OPTIONS]\n\n"
          "Serves Kimi K3 and Kimi-Linear checkpoints.\n\nCommands\n",
          out);
    size_t n;
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "  %-15s  %s\n", list[i]->name, list[i]->summary);
    fputs("\n`weir COMMAND --help` lists the options of a command, `man weir-COMMAND` says more.\n",
          out);
}

void help_print_family(FILE *out, const char *word) {
    size_t n, len = strlen(word);
    const struct command *const *list = command_list(&n);
    fprintf(out, "usage: weir %s COMMAND [OPTIONS]\n\nCommands\n", word);
    for (size_t i = 0; i < n; i++)
        if (!strncmp(list[i]->name, word, len) && list[i]->name[len] == ' ')
            fprintf(out, "  %-15s  %s\n", list[i]->name, list[i]->summary);
}

/* ------------------------------------------------------------------------------------------------
 * man pages */

/* The page of a command: a dash stands where its name has a space. */
static void man_page_name(const struct command *c, char *out, size_t cap) {
    snprintf(out, cap, "weir-%s", c->name);
    for (char *p = out; *p; p++)
        *p = *p == ' ' ? '-' : *p;
}

/* Characters in roff: backslash and dash are escaped, and a line must not start with a control
 * character. */
static void roff_word(FILE *out, const char *text, size_t n, bool line_start) {
    if (line_start && n && (text[0] == '.' || text[0] == '\''))
        fputs("\\&", out);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\\')
            fputs("\\e", out);
        else if (text[i] == '-')
            fputs("\\-", out);
        else
            fputc(text[i], out);
    }
}

static void roff_text(FILE *out, const char *text) {
    roff_word(out, text, strlen(text), false);
}

/* One sentence a line, as mdoc wants it, and no line beyond 78 columns. */
static void roff_sentences(FILE *out, const char *text, size_t n) {
    size_t column = 0;
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        while (i + len < n && text[i + len] != ' ' && text[i + len] != '\n')
            len++;
        if (column && column + 1 + len > 76) {
            fputc('\n', out);
            column = 0;
        } else if (column) {
            fputc(' ', out);
            column++;
        }
        roff_word(out, text + i, len, column == 0);
        column += len;
        bool stop = len && strchr(".?!", text[i + len - 1]);
        i += len;
        while (i < n && (text[i] == ' ' || text[i] == '\n'))
            i++;
        if (stop && i < n && !islower((unsigned char)text[i])) {
            fputc('\n', out);
            column = 0;
        }
    }
    fputc('\n', out);
}

static void roff_paragraphs(FILE *out, const char *text) {
    bool first = true;
    while (*text) {
        const char *end = strstr(text, "\n\n");
        size_t n = end ? (size_t)(end - text) : strlen(text);
        bool literal = *text == ' ';
        if (literal) {
            fputs(".Bd -literal -offset indent\n", out);
            /* Two spaces of indentation mark the block in the source; the display indents. */
            for (size_t i = 0; i < n;) {
                size_t len = 0;
                while (i + len < n && text[i + len] != '\n')
                    len++;
                size_t skip = len >= 2 ? 2 : len;
                roff_word(out, text + i + skip, len - skip, true);
                fputc('\n', out);
                i += len + 1;
            }
            fputs(".Ed\n", out);
        } else {
            if (!first)
                fputs(".Pp\n", out);
            roff_sentences(out, text, n);
        }
        first = false;
        text += n;
        while (*text == '\n')
            text++;
    }
}

static void man_option(FILE *out, const struct option_spec *s) {
    fputs(".It Fl \\-", out);
    roff_text(out, s->name);
    if (s->alias) {
        fputs(" , Fl \\-", out);
        roff_text(out, s->alias);
    }
    if (s->value) {
        fputs(" Ar ", out);
        print_value(out, s);
    }
    fputc('\n', out);
    char lack[128];
    roff_sentences(out, s->help, strlen(s->help));
    if (lacking(s, lack, sizeof lack)[0])
        roff_sentences(out, lack, strlen(lack));
    if (s->required)
        fputs("Required.\n", out);
    if (s->fallback && s->type != OPTION_FLAG) {
        fputs("Default: ", out);
        roff_text(out, s->fallback);
        fputs(".\n", out);
    }
    char name[96];
    if (s != &config_row && s != &help_row) {
        option_env_name(s, name, sizeof name);
        fprintf(out, "Environment:\n.Ev %s .\n", name);
    }
}

static void man_head(FILE *out, const char *page, const char *name, const char *summary) {
    fprintf(out, ".Dd %s\n.Dt ", WEIR_DATE);
    for (const char *p = page; *p; p++)
        fputc(toupper((unsigned char)*p), out);
    fprintf(out, " 1\n.Os weir %s\n.Sh NAME\n.Nm %s\n.Nd %s\n", WEIR_VERSION, name, summary);
}

static void man_exit_status(FILE *out) {
    fputs(".Sh EXIT STATUS\n"
          ".Bl -tag -width Ds\n"
          ".It 0\nThe command did what was asked.\n"
          ".It 1\nSomething that was read is not as it must be, or the work failed; one line on\n"
          "standard error names the file and what is wrong with it.\n"
          ".It 2\nAn option is unknown or its value is not allowed; one line names both.\n"
          ".El\n",
          out);
}

static void man_whole(FILE *out) {
    size_t n;
    const struct command *const *list = command_list(&n);
    man_head(out, "weir", "weir", "serve Kimi K3 and Kimi\\-Linear checkpoints");
    fputs(".Sh SYNOPSIS\n.Nm weir\n.Ar command\n.Op Ar options\n.Sh DESCRIPTION\n.Nm\n"
          "loads the original Hugging Face directory of a Kimi K3 or Kimi\\-Linear\n"
          "model, serves it behind the OpenAI API, completes prompts, compares\n"
          "itself with reference numbers, and tells what a checkpoint holds.\n"
          "Each command has a page of its own:\n.Bl -tag -width weir-tokenize(1)\n",
          out);
    char page[64];
    for (size_t i = 0; i < n; i++) {
        man_page_name(list[i], page, sizeof page);
        fprintf(out, ".It Xr %s 1\n%s.\n", page, list[i]->summary);
    }
    fputs(".El\n.Pp\n"
          "Options are given as\n.Fl \\-name Ar value\nor\n.Fl \\-name Ns = Ns Ar value ,\n"
          "in the environment as\n.Ev WEIR_NAME ,\nor in a YAML file named by\n"
          ".Fl \\-config .\n"
          "The command line wins over the environment,\nand the environment over the file.\n",
          out);
    man_exit_status(out);
    fputs(".Sh EXAMPLES\nServe a checkpoint, and ask it from another terminal:\n"
          ".Bd -literal -offset indent\n"
          "weir serve \\-\\-model models/tiny\\-k3\n"
          "weir chat \\-\\-url http://127.0.0.1:8000\n"
          ".Ed\n.Pp\nSee what a directory holds before it is served:\n"
          ".Bd -literal -offset indent\n"
          "weir inspect models/tiny\\-k3\n"
          ".Ed\n.Sh SEE ALSO\n",
          out);
    const struct command *sorted[64];
    size_t kept = 0;
    for (size_t i = 0; i < n && kept < sizeof sorted / sizeof sorted[0]; i++) {
        size_t at = kept++;
        for (; at && strcmp(sorted[at - 1]->name, list[i]->name) > 0; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = list[i];
    }
    for (size_t i = 0; i < kept; i++) {
        man_page_name(sorted[i], page, sizeof page);
        fprintf(out, ".Xr %s 1%s\n", page, i + 1 < kept ? " ," : "");
    }
}

/* The order of sections is mdoc's: files stand before the exit status, the rest behind it. */
static void man_sections(FILE *out, const struct command *c, bool files) {
    for (size_t i = 0; i < c->n_sections; i++) {
        const char *title = c->section[i].title;
        if (!strcmp(title, "DESCRIPTION") || !strcmp(title, "FILES") != files)
            continue;
        fprintf(out, ".Sh %s\n", title);
        roff_paragraphs(out, c->section[i].text);
    }
}

void help_print_man(FILE *out, const struct command *c) {
    if (!c) {
        man_whole(out);
        return;
    }
    char page[64];
    man_page_name(c, page, sizeof page);
    man_head(out, page, page, c->summary);
    fprintf(out, ".Sh SYNOPSIS\n.Nm weir %s\n", c->name);
    if (c->synopsis[0]) {
        roff_text(out, c->synopsis);
        fputc('\n', out);
    }
    for (size_t i = 0; i < c->n_sections && !strcmp(c->section[i].title, "DESCRIPTION"); i++) {
        fputs(".Sh DESCRIPTION\n", out);
        roff_paragraphs(out, c->section[i].text);
    }
    fputs(".Sh OPTIONS\n", out);
    for (size_t g = 0; g < c->options.n; g++) {
        fprintf(out, ".Ss %s\n.Bl -tag -width Ds\n", c->options.group[g].title);
        for (size_t i = 0; i < c->options.group[g].n; i++)
            man_option(out, &c->options.group[g].option[i]);
        fputs(".El\n", out);
    }
    fputs(".Ss General\n.Bl -tag -width Ds\n", out);
    man_option(out, &config_row);
    man_option(out, &help_row);
    fputs(".El\n", out);
    man_sections(out, c, true);
    man_exit_status(out);
    man_sections(out, c, false);
    fputs(".Sh SEE ALSO\n.Xr weir 1\n", out);
}
