/* replay.c - stands in for libFuzzer's main: runs a fuzz target over files and folders of a corpus.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0)
        return 0;
    if (S_ISDIR(s.st_mode)) {
        DIR *d = opendir(path);
        int n = 0;
        for (struct dirent *entry; d && (entry = readdir(d));) {
            char name[1024];
            if (entry->d_name[0] == '.')
                continue;
            (void)snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
            n += replay(name);
        }
        if (d)
            (void)closedir(d);
        return n;
    }
    FILE *in = fopen(path, "rb");
    uint8_t *data = malloc((size_t)s.st_size + 1);
    size_t n = in && data ? fread(data, 1, (size_t)s.st_size, in) : 0;
    (void)LLVMFuzzerTestOneInput(data, n);
    free(data);
    if (in)
        (void)fclose(in);
    return 1;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++)
        n += replay(argv[i]);
    (void)printf("%d inputs replayed\n", n);
    return n == 0;
}
