# needle: `make train` trains the default model, `make test` runs all tests; both install and build what they need.
BUILD ?= build
JOBS ?= $(shell nproc)
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PACKAGES := g++ gfortran make cmake ninja-build libopenblas-openmp-dev nlohmann-json3-dev libcli11-dev libgtest-dev \
            libedit-dev libpcre2-dev pkg-config graphviz
# Faster products; without it they are OpenBLAS's.
WANTED := libdnnl-dev

.PHONY: help train test lessons page bench build deps asan cuda-off cuda-compile mutate gpu-bundle format clean
help:
	@echo "make train         train the default model to its end and show the result"
	@echo "make test          run all tests; those of CUDA kernels on the CPU"
	@echo "make lessons       run the lessons one after the other, in about a minute"
	@echo "make page          drive the page of needle inside in Chromium by keys, check and photograph it"
	@echo "make bench         measure training steps"
	@echo "make asan          run all tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make cuda-off      compile everything without CUDA"
	@echo "make cuda-compile  compile everything with nvcc and list what its kernels need"
	@echo "make mutate        put mistakes into CUDA sources (FILES=..., CHANGED=REVISION) and see whether tests find them"
	@echo "make gpu-bundle    gather what a machine with a GPU needs to test and measure (CUDA_ARCHITECTURE=90, TEXT=FILE)"
	@echo "make format        format all sources"

# Configures and compiles the folder $(1) with the options $(2), the targets $(3) of it.
define compile
@cmake -S . -B $(1) -G Ninja $(2) > $(1).log 2>&1 || { cat $(1).log; exit 1; }; rm -f $(1).log
cmake --build $(1) -j $(JOBS) $(if $(3),--target $(3))
endef
RUN_TESTS := ctest --output-on-failure --no-tests=error -j $(JOBS)

train: build
	$(BUILD)/needle train

# Of a watched run as large as W1. The pictures stay in the build's folder.
PAGE := $(BUILD)/page
page: build
	@mkdir -p $(PAGE)
	$(BUILD)/needle train --lines data/names.txt --context 64 --layers 4 --width 128 --heads 4 --batch 12 --steps 60 \
	  --watch 10 --out $(PAGE)/run --overwrite
	$(BUILD)/needle inside --checkpoint $(PAGE)/run --batch 12 --length 64 --html $(PAGE)/inside.html
	python3 tests/page/drive.py $(PAGE)/inside.html $(PAGE)

bench: build
	$(BUILD)/needle bench

# CUDA where there are nvcc and a GPU.
build: deps
	$(call compile,$(BUILD),-DNEEDLE_CUDA=AUTO -DNEEDLE_TESTS=OFF)

test: deps
	$(call compile,$(BUILD)-test,-DNEEDLE_CUDA=EMULATED)
	cd $(BUILD)-test && $(RUN_TESTS)

# Each under its title, which is the first line of its source. Threads that wait must not keep a core.
lessons: deps
	$(call compile,$(BUILD),-DNEEDLE_CUDA=AUTO -DNEEDLE_TESTS=OFF,lessons)
	@cd $(BUILD)/lessons && for source in $(CURDIR)/lessons/*.cpp; do \
	  printf '\n===== %s\n\n' "$$(sed -n '1s,^// ,,p' $$source)"; \
	  GOMP_SPINCOUNT=3000 ./$$(basename $$source .cpp) || exit 1; \
	done

asan: deps
	$(call compile,$(BUILD)-asan,-DNEEDLE_CUDA=EMULATED -DNEEDLE_SANITIZE=ON)
	cd $(BUILD)-asan && ASAN_OPTIONS=detect_leaks=1 $(RUN_TESTS)

cuda-off: deps
	$(call compile,$(BUILD)-off,-DNEEDLE_CUDA=OFF)

REPORT := python3 $(CURDIR)/tools/cuda_compile_report.py
cuda-compile: deps
	@command -v nvcc > /dev/null || { echo "cuda-compile: there is no nvcc on the path"; exit 1; }
	$(call compile,$(BUILD)-nvcc,-DNEEDLE_CUDA=ON "-DCMAKE_CUDA_ARCHITECTURES=75-real;80-real;90" \
	  -DCMAKE_CUDA_FLAGS=-Xptxas=-v "-DCMAKE_CUDA_COMPILER_LAUNCHER=$(subst $() ,;,$(REPORT) record)")
	@$(REPORT) report $(BUILD)-nvcc

FILES ?=
CHANGED ?=
mutate: deps
	python3 tests/mutate/mutate.py --work $(BUILD)-mutate --jobs $(JOBS) $(if $(CHANGED),--changed $(CHANGED)) \
	  $(if $(FILES),--files $(FILES)) $(MUTATE_OPTIONS)

CUDA_ARCHITECTURE ?= 90
TEXT ?= data/tinyshakespeare.txt
gpu-bundle: deps
	@command -v nvcc > /dev/null || { echo "gpu-bundle: there is no nvcc on the path"; exit 1; }
	$(call compile,$(BUILD)-gpu,-DNEEDLE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURE) -DNEEDLE_STATIC=ON \
	  -DNEEDLE_ONEDNN=OFF -DNEEDLE_NATIVE=OFF -DCMAKE_CXX_FLAGS=-march=x86-64-v3 -DNEEDLE_TEST_ROOT=/tmp/needle-gpu-bundle, \
	  needle_program needle_tests needle_cuda_tests)
	bench/make_bundle.sh $(BUILD)-gpu gpu-bundle $(TEXT)

# Asks the package system only for what is missing.
deps:
	@missing=""; for package in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
	  echo "installing:$$missing"; \
	  $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing; \
	fi
	@dpkg-query -W -f '$${Status}' $(WANTED) 2>/dev/null | grep -q 'ok installed' || { \
	  echo "installing: $(WANTED)"; \
	  { $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $(WANTED); } \
	    || echo "going on without $(WANTED)"; \
	}

format:
	git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format -i

clean:
	rm -rf $(BUILD) $(BUILD)-test $(BUILD)-asan $(BUILD)-off $(BUILD)-nvcc $(BUILD)-mutate $(BUILD)-gpu gpu-bundle
