(()=>{const r=document.documentElement,b=document.getElementById('theme');b.hidden=false;
b.onclick=()=>{const d=r.dataset.theme||(matchMedia('(prefers-color-scheme:dark)').matches?'dark':'light');r.dataset.theme=d==='dark'?'light':'dark'};
document.querySelectorAll('.copy').forEach(c=>{if(!navigator.clipboard)return;c.hidden=false;c.onclick=()=>navigator.clipboard.writeText(c.dataset.copy).then(()=>{c.textContent='Copied';setTimeout(()=>c.textContent='Copy',1200)})});
document.querySelectorAll('.pt').forEach(p=>{const s=p.closest('section').querySelector('.say'),on=()=>s.textContent=p.dataset.say;p.addEventListener('mouseenter',on);p.addEventListener('focus',on)});
addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>{d.dataset.was=d.open?'1':'';d.open=true}));
addEventListener('afterprint',()=>document.querySelectorAll('details').forEach(d=>d.open=!!d.dataset.was));})();
