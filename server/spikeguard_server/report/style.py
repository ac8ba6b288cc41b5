"""The one style sheet of the post-mortem, and the colours that its picture shares with it."""

from __future__ import annotations

from collections.abc import Mapping

# name -> (light, dark); the picture is drawn in the light ones.
COLOURS: Mapping[str, tuple[str, str]] = {
    "ink": ("#1c2430", "#e4e8ee"),
    "muted": ("#657080", "#98a3b3"),
    "rule": ("#dde2e9", "#313a46"),
    "paper": ("#fdfdfc", "#14181e"),
    "panel": ("#f4f6f8", "#1c222b"),
    "kept": ("#1f5f9f", "#79b4f2"),
    "undone": ("#b9770e", "#e5b25d"),
    "trend": ("#3a7d5d", "#6cc39a"),
    "alarm": ("#b3261e", "#ff8a80"),
}


def _variables(theme: int) -> str:
    return "".join(f"--{name}:{pair[theme]};" for name, pair in COLOURS.items())


FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'
THEMES = (
    f":root{{{_variables(0)}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}\n"
)
STYLE = (
    THEMES
    + """*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
 font:16px/1.55 """
    + FONTS
    + """}
main{max-width:64rem;margin:0 auto;padding:1.75rem 1.5rem 2.5rem}
h1{font-size:1.65rem;line-height:1.25;margin:0 0 .75rem;letter-spacing:-.01em;text-wrap:balance}
h2{font-size:1.1rem;margin:.9rem 0 .35rem;padding-top:.6rem;border-top:1px solid var(--rule)}
p{margin:.35rem 0 .6rem;max-width:56rem}
.eyebrow{margin:0 0 .35rem;font-size:.75rem;letter-spacing:.12em;text-transform:uppercase;
 color:var(--muted)}
.header{display:grid;grid-template-columns:repeat(auto-fit,minmax(10.5rem,1fr));gap:.4rem 1.5rem;
 margin:1rem 0 0;padding:.8rem 1rem;background:var(--panel);border-radius:6px}
.header dt{font-size:.75rem;color:var(--muted)}
.header dd{margin:0;font-size:.92rem;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.page{display:grid;grid-template-columns:minmax(0,1fr) minmax(0,1fr);column-gap:2.5rem}
.page>section{grid-column:1/-1}
.page>.beside{grid-column:auto}
.beside table{min-width:0}
.beside td:not([class]){min-width:0}
.appendix{margin-top:1.5rem;padding-top:.8rem;border-top:3px double var(--rule)}
.appendix>summary{cursor:pointer;font-weight:600}
.scroll{overflow-x:auto}
table{border-collapse:collapse;min-width:24rem;font-size:.875rem;line-height:1.4;
 margin:.25rem 0 1rem;font-variant-numeric:tabular-nums}
th{text-align:left;font-weight:600;color:var(--muted);font-size:.78rem;white-space:nowrap}
th,td{padding:.4rem .9rem .4rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
.number{text-align:right;white-space:nowrap}
ul{padding-left:1.1rem;margin:.35rem 0 .6rem;max-width:56rem}
li{margin:.35rem 0}
h1,li,p{overflow-wrap:anywhere}
td{overflow-wrap:break-word}
td:not([class]){min-width:9rem}
.short{white-space:nowrap}
figure{margin:.6rem 0;overflow-x:auto}
figure svg{width:100%;min-width:34rem;height:auto;display:block}
figcaption{font-size:.82rem;color:var(--muted);max-width:46rem;margin-top:.4rem}
footer{margin-top:1.5rem;padding-top:1rem;border-top:1px solid var(--rule);font-size:.8rem;
 color:var(--muted)}
a{color:var(--kept);overflow-wrap:anywhere}
@media screen and (max-width:48rem){main{padding:1.5rem 1rem 3rem}table{min-width:0}
 td:not([class]){min-width:6rem}td.short{white-space:normal}.page>.beside{grid-column:1/-1}}
@page{size:A4;margin:11mm 14mm}
@media print{body{font-size:8.3pt;line-height:1.32;background:none}main{max-width:none;padding:0}
 h1{font-size:12.5pt;margin:0 0 .3rem}h2{font-size:9.2pt;margin:.45rem 0 .15rem;padding-top:.3rem;
 break-after:avoid}
 p{margin:.1rem 0 .25rem;max-width:none}ul{margin:.1rem 0 .25rem;max-width:none}li{margin:.08rem 0}
 .eyebrow{display:none}.header{margin:.2rem 0 0;padding:.3rem .5rem;gap:.1rem .8rem;
 grid-template-columns:repeat(5,auto)}.header dt{font-size:6.5pt}.header dd{font-size:7.6pt}
 table{font-size:7.6pt;line-height:1.25;margin:.1rem 0 .25rem}th{font-size:7pt}
 th,td{padding:.13rem .6rem .13rem 0}
 figure{margin:.25rem 0}figcaption{font-size:6.8pt;margin-top:0;max-width:none}
 .page .curves svg{height:66mm}
 .page{column-gap:1.4rem}.appendix{break-before:page;margin-top:0;padding-top:0;border-top:0}
 .appendix::details-content{content-visibility:visible;height:auto}
 tr,figure{break-inside:avoid}.scroll,figure{overflow:visible}figure svg{min-width:0}
 footer{margin-top:.6rem;padding-top:.3rem;font-size:6.8pt}}
"""
)
