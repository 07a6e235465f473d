/* Stands in for binfmt_misc, which a container cannot register: a program of arm64 that is started goes through qemu. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>

#define MOST 256

static int is_preload(const char *variable) { return strncmp(variable, "LD_PRELOAD=", 11) == 0; }

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const argv[], char *const envp[])
{
    int (*real)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[],
                char *const[]) = dlsym(RTLD_NEXT, "posix_spawnp");
    char *words[MOST] = {"qemu-aarch64", (char *)file};
    char *variables[MOST] = {0};
    int n = 2, kept = 0;
    for (int at = 1; argv[at] && n < MOST - 1; at++)
        words[n++] = argv[at];
    /* qemu itself is of the host; it sets the variable for its program by QEMU_SET_ENV. */
    for (int at = 0; envp[at] && kept < MOST - 1; at++)
        if (!is_preload(envp[at]))
            variables[kept++] = envp[at];
    return real(pid, words[0], actions, attributes, words, variables);
}
