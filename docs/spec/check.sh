#!/usr/bin/env bash
# Runs the protocol's model: ./check.sh [quick|holds|mutants|live|big|NAME]; one line a run.
# Exit 1: a run is not as expected; 2: it could not be run. A violated run leaves its steps in
# trails/NAME.txt. LIMIT is the most seconds that one run may take (900), JOBS how many run at
# once (the processors; one at a time for `big`, whose runs take up to 8 GB each).
cd "$(dirname "$0")" || exit 2
for tool in spin gcc timeout; do
  command -v "$tool" > /dev/null && continue
  echo "$tool is missing (Debian: apt install spin gcc coreutils)" >&2
  exit 2
done
here=$PWD; want=${1:-quick}; runs=0; mkdir -p trails
jobs=${JOBS:-$(nproc)}; [ "$want" = big ] && jobs=${JOBS:-1}
failed=$(mktemp); trap 'rm -f "$failed"' EXIT

one() {  # group, name, expected errors, the model's flags, kind of search
  case "$want" in
    quick) [ "$1" = big ] && return;;
    "$1"|"$2") ;;
    *) return;;
  esac
  runs=$((runs + 1))
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
  run "$@" &
}

run() {  # the same; its lines are printed together
  local search limits flags=$4 folder errors code
  case "$5" in
    all) search="-DSAFETY -DCOLLAPSE";       limits="-m20000 -E -w25";;   # every state
    bfs) search="-DSAFETY -DBFS -DCOLLAPSE"; limits="-E"                  # the fewest steps
         flags="-DBFS_RUN $flags";;
    np)  search="-DNP -DCOLLAPSE";           limits="-l -E -m50000";;     # no endless run
    ltl) search="-DNFAIR=3 -DCOLLAPSE";      limits="-a -f -m50000"       # in the end, if fair
         flags="-DLTL -DNOMON $flags";;
  esac
  folder=$(mktemp -d); cp exactly_once.pml "$folder"; cd "$folder" || exit 2
  # shellcheck disable=SC2086  # flags are words
  spin $flags -a exactly_once.pml > gen.log && gcc -O2 -w $search -o pan pan.c \
    || { cat gen.log; echo "$2" >> "$failed"; exit 2; }
  SECONDS=0
  # shellcheck disable=SC2086
  timeout -s INT "${LIMIT:-900}" ./pan $limits > out.log 2>&1; code=$?
  errors=$(grep -o 'errors: [0-9]*' out.log | cut -d' ' -f2)
  [ "$code" = 124 ] && errors="part(${errors:-?})"
  [ "$errors" = "$3" ] || echo "$2" >> "$failed"
  { printf '%-4s %-26s errors=%s (expected %s) states=%s depth=%s %ss [%s] %s\n' \
    "$([ "$errors" = "$3" ] && echo ok || echo BAD)" "$2" "${errors:-none,rc=$code}" "$3" \
    "$(awk '/states, stored/{print $1}' out.log)" \
    "$(grep -o 'depth reached [0-9]*' out.log | cut -d' ' -f3)" "$SECONDS" "$flags" "$5"
  grep -E 'assertion violated|cycle \(|too small' out.log | cut -c1-150 | sed 's/^/       /'
  } > said.txt
  cat said.txt
  # shellcheck disable=SC2086
  ls ./*.trail > /dev/null 2>&1 && spin $flags -t exactly_once.pml 2>&1 \
    | grep '@ ' | sed 's/^ *@ //' | awk '{print NR". "$0}' > "$here/trails/$2.txt"
  cd "$here" && rm -rf "$folder"
}

R1="-DRULE=1 -DZSTART=2"; R2="-DRULE=2 -DZSTART=1"; BARE="-DCANCEL=9 -DEXPIRE=0"

# what must hold
one holds rule1_f1            0 "$R1 -DFAULTS=1" all
one holds rule1_self_fencing  0 "-DRULE=1 -DZSTART=0 -DFAULTS=1" all
one holds rule1_one_slot      0 "$R1 -DFAULTS=1 -DSLOTS=1" all
one holds rule1_no_keep       0 "$R1 -DFAULTS=1 -DKEEP=0" all
one holds rule1_one_f3        0 "$R1 -DNPOS=1 -DFAULTS=3" all
one holds rule2_f1            0 "$R2 -DFAULTS=1" all
one holds rule2_one_slot      0 "$R2 -DFAULTS=1 -DSLOTS=1" all
one holds rule2_combined_f1   0 "$R2 -DFAULTS=1 -DCOMBINE=1" all
one holds rule2_one_f3        0 "$R2 -DNPOS=1 -DFAULTS=3" all
one holds rule2_blame         0 "$R2 -DFAULTS=1 -DBLAME" all
one holds rule2_three_f1      0 "$R2 -DNPOS=3 -DFAULTS=1 $BARE" all
one holds seen_in_transaction 0 "$R1 -DSEEN=1 -DFAULTS=1 $BARE" all
one holds pipelined_drop      0 "$R1 -DMUT=16 -DFAULTS=1" all
one holds retry_same_id       0 "$R1 -DNPOS=3 -DDUP=1 -DFAULTS=1 $BARE" all
one holds cancel_alias        0 "$R1 -DNPOS=3 -DDUP=1 -DCANCEL=2 -DEXPIRE=0 -DMUT=17 -DFAULTS=0" all

# mistakes that must be found
one mutants a_worker_reads_first   1 "$R1 -DMUT=1 -DFAULTS=1" bfs
one mutants a_progress_first       1 "$R1 -DMUT=19 -DFAULTS=1 -DLAX" bfs
one mutants a_progress_first_rule2 1 "$R2 -DMUT=19 -DFAULTS=1 -DLAX" bfs
one mutants a_same_under_rule2     1 "$R2 -DMUT=1 -DFAULTS=1" bfs
one mutants b_memory_first         1 "$R1 -DMUT=2 -DFAULTS=1" bfs
one mutants b_seen_at_the_end      1 "$R1 -DMUT=2 -DFAULTS=1 -DNO5 -DLAX" bfs
one mutants c_doubt_scheduler      1 "$R1 -DMUT=3 -DFAULTS=1 -DNO5 -DLAX" bfs
one mutants c_doubt_worker         1 "$R1 -DMUT=4 -DFAULTS=1 -DLAX" bfs
one mutants d_runs_predecessors    1 "$R1 -DMUT=5 -DFAULTS=1" bfs
one mutants e_cancel_frees_slot    1 "$R1 -DMUT=6 -DFAULTS=0 -DSLOTS=1" bfs
one mutants end_before_init        1 "-DRULE=1 -DZSTART=0 -DMUT=7 -DFAULTS=1" bfs
one mutants scheduler_reads_first  1 "$R1 -DMUT=8 -DFAULTS=1 -DNO5 -DLAX" bfs
one mutants ids_from_frontier      1 "$R1 -DMUT=9 -DNPOS=3 -DDUP=1 -DFAULTS=1 $BARE" bfs
one mutants seen_resets_slots      1 "$R1 -DMUT=10 -DSEEN=1 -DFAULTS=1 $BARE" bfs
one mutants cancelled_requeued     1 "$R1 -DMUT=11 -DFAULTS=1 -DEXPIRE=0" bfs
one mutants from_latest            1 "$R1 -DMUT=12 -DFAULTS=1 -DEXPIRE=0" bfs
one mutants no_hand_back           1 "$R1 -DMUT=13 -DFAULTS=1 -DEXPIRE=0" bfs
one mutants progress_apart         1 "$R1 -DMUT=14 -DFAULTS=1 -DEXPIRE=0" bfs
one mutants no_dedupe              1 "$R1 -DMUT=18 -DNPOS=3 -DDUP=1 -DFAULTS=0 $BARE" bfs
# holes in weaker rules
one mutants zombie_starts          1 "-DRULE=1 -DZSTART=1 -DFAULTS=1" bfs
one mutants seen_by_plain_producer 1 "$R1 -DSEEN=2 -DFAULTS=1 $BARE" bfs
one mutants innocent_is_dead       1 "$R1 -DINNOCENT -DNPOS=1 -DFAULTS=2 $BARE" bfs
one mutants cancel_of_the_retry    1 "$R1 -DNPOS=3 -DDUP=1 -DCANCEL=2 -DFAULTS=0 -DEXPIRE=0" bfs

# that it ends
one live finite_rule1_f1      0 "$R1 -DFAULTS=1" np
one live finite_rule2_f1      0 "$R2 -DFAULTS=1" np
one live ltl_one_rule1_f1     0 "$R1 -DNPOS=1 -DFAULTS=1" ltl
one live ltl_one_rule2_f1     0 "$R2 -DNPOS=1 -DFAULTS=1" ltl
one live ltl_rule1_f0         0 "$R1 -DFAULTS=0" ltl
one live fenced_inits_again   1 "$R1 -DNPOS=1 -DMUT=15 -DFAULTS=1 $BARE" ltl

# big: minutes each, up to 8 GB
one big rule2_f2              0 "$R2 -DFAULTS=2" all
one big rule2_f3_bare         0 "$R2 -DFAULTS=3 $BARE" all
one big rule1_f2_bare         0 "$R1 -DFAULTS=2 $BARE" all
one big rule1_f2_one_slot     0 "$R1 -DFAULTS=2 -DEXPIRE=0 -DSLOTS=1" all
one big rule1_f2              0 "$R1 -DFAULTS=2" all
one big rule2_combined_f2     0 "$R2 -DFAULTS=2 -DCOMBINE=1 $BARE" all

[ "$runs" -gt 0 ] || { echo "no run is called $want" >&2; exit 2; }
wait
[ ! -s "$failed" ] || { echo "not as expected: $(sort "$failed" | tr '\n' ' ')" >&2; exit 1; }
