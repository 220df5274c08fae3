/* cmd_completions.c - `snug completions`: a script that completes command lines, from the tables.
 *
 * Both scripts have the same shape: after `snug`, a command; after an option with choices, these;
 * after one with another value, files; else the command's words, its options, files. */
#include "cli/answer.h"
#include "cli/commands.h"

#include <string.h>

/* The words of "[list|show] [ID]" or "bash|zsh": "list show"; nothing where it names none. */
static void add_words(const char *arguments, struct str *out)
{
    const char *from = arguments + (arguments[0] == '[');
    size_t n = strcspn(from, " ]");
    if (!memchr(from, '|', n))
        return;
    for (size_t i = 0; i < n; i++)
        str_add_n(out, from[i] == '|' ? " " : &from[i], 1);
}

static void add_choices(const char *choices, struct str *out)
{
    for (; *choices; choices++)
        str_add_n(out, *choices == '|' ? " " : choices, 1);
}

static void add_commands(struct str *out)
{
    for (size_t i = 0; i < command_count(); i++)
        if (*command_at(i)->about)
            str_printf(out, "%s%s", i ? " " : "", command_at(i)->name);
    str_add(out, " help --help --version");
}

static void add_options(const struct command *c, struct str *out)
{
    bool any = false;
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!command_takes(c, (enum option_id)i))
            continue;
        str_printf(out, "%s--%s", any ? " " : "", option_info((enum option_id)i).name);
        any = true;
    }
}

/* Lines "command/--option) words=...": values of options, by shell `case`. */
static void add_values(const struct command *c, struct str *out)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        struct option_info o = option_info((enum option_id)i);
        if (!command_takes(c, (enum option_id)i) || !o.value)
            continue;
        str_printf(out, "    %s/--%s) words='", c->name, o.name);
        if (o.choices)
            add_choices(o.choices, out);
        str_printf(out, "' value=%s ;;\n", o.choices ? "words" : "file");
    }
}

/* The part that is the same in both shells: sets words, value, options from $command and $prev. */
static void add_tables(struct str *out)
{
    str_add(out, "  case $command/$prev in\n");
    for (size_t i = 0; i < command_count(); i++)
        add_values(command_at(i), out);
    str_add(out, "  esac\n  case $command in\n");
    for (size_t i = 0; i < command_count(); i++) {
        const struct command *c = command_at(i);
        str_printf(out, "    %s) verbs='", c->name);
        add_words(c->arguments, out);
        str_add(out, "' options='");
        add_options(c, out);
        str_add(out, "' ;;\n");
    }
    str_add(out, "    help) verbs='");
    add_commands(out);
    str_add(out, "' ;;\n  esac\n");
}

static void add_bash(struct str *out)
{
    str_add(
        out, "# bash completion of snug; made by `snug completions bash`\n"
             "_snug() {\n"
             "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
             "  local command=${COMP_WORDS[1]} words= value= verbs= options= i\n"
             "  COMPREPLY=()\n"
             "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    words='");
    add_commands(out);
    str_add(
        out,
        "'\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n    return\n  fi\n"
        "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
        "    [ \"${COMP_WORDS[i]}\" = -- ] && { COMPREPLY=($(compgen -f -- \"$cur\")); return; }\n"
        "  done\n");
    add_tables(out);
    str_add(
        out, "  if [ \"$value\" = file ]; then COMPREPLY=($(compgen -f -- \"$cur\")); return; fi\n"
             "  if [ \"$value\" = words ]; then COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")); "
             "return; fi\n"
             "  case $cur in\n"
             "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")) ;;\n"
             "    *) if [ \"$COMP_CWORD\" -eq 2 ] && [ -n \"$verbs\" ]; then\n"
             "         COMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\"))\n"
             "       else COMPREPLY=($(compgen -f -- \"$cur\")); fi ;;\n"
             "  esac\n"
             "}\n"
             "complete -o filenames -F _snug snug\n");
}

static void add_zsh(struct str *out)
{
    str_add(
        out, "#compdef snug\n# zsh completion of snug; made by `snug completions zsh`\n"
             "_snug() {\n"
             "  local prev=${words[CURRENT-1]} command=${words[2]} i\n"
             "  local -a line; line=(\"${words[@]}\")\n"
             "  local words= value= verbs= options=\n"
             "  if (( CURRENT == 2 )); then\n    words='");
    add_commands(out);
    str_add(
        out, "'\n    compadd -- ${=words}\n    return\n  fi\n"
             "  for ((i = 3; i < CURRENT; i++)); do\n"
             "    [[ ${line[i]} == -- ]] && { _files; return }\n"
             "  done\n");
    add_tables(out);
    str_add(
        out, "  if [[ $value == file ]]; then _files; return; fi\n"
             "  if [[ $value == words ]]; then compadd -- ${=words}; return; fi\n"
             "  if [[ ${line[CURRENT]} == -* ]]; then compadd -- ${=options}; return; fi\n"
             "  if (( CURRENT == 3 )) && [[ -n $verbs ]]; then compadd -- ${=verbs}; return; fi\n"
             "  _files\n"
             "}\n"
             "if [[ ${funcstack[1]} == _snug ]]; then _snug \"$@\"; else compdef _snug snug; fi\n");
}

int cmd_completions(const struct args *a)
{
    struct err e = {0};
    struct str out;
    json_t *d = NULL;
    enum status st = ST_OK;
    int rc;
    str_init(&out);
    if (strcmp(a->argument[0], "bash") == 0)
        add_bash(&out);
    else if (strcmp(a->argument[0], "zsh") == 0)
        add_zsh(&out);
    else
        st = err_set(&e, ST_USAGE, "completions are for bash and zsh, not \"%s\"", a->argument[0]);
    if (st != ST_OK || a->json) {
        if (st == ST_OK) {
            d = json_object();
            json_put_str(d, "script", out.data);
        }
        rc = answer_end(a->json, st, &e, d);
    } else {
        rc = answer_text(out.data);
    }
    str_release(&out);
    return rc;
}
