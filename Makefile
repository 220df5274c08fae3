# Short names for what is done often; the build itself is CMake's (CMakePresets.json).
JOBS := $(shell nproc)

all:
	@cmake --preset release >/dev/null && cmake --build build --target snug -j$(JOBS)
check:
	@sh scripts/check-all
trace:
	@sh scripts/trace
bench:
	@cmake --preset release >/dev/null && sh scripts/bench
soak:
	@sh scripts/soak
asan tsan verify:
	@cmake --preset $@ >/dev/null && cmake --build build-$@ -j$(JOBS) && SNUG_BUILD=build-$@ sh scripts/check-c
fuzz:
	@sh scripts/fuzz 60
format:
	@git ls-files '*.c' '*.h' | grep -v '^tests/corpus' | xargs clang-format -i
tidy:
	@cmake --preset release >/dev/null && git ls-files 'src/*.c' | xargs clang-tidy -p build --quiet
docs:
	@cmake --preset release >/dev/null && sh scripts/docs
clean:
	@rm -rf build build-*

.PHONY: all check trace bench soak asan tsan verify fuzz format tidy docs clean
